"""The page of a study: sections of markup, curves as pictures, and the template, style and script they stand in."""
