"""The files of a source: on disk, or behind URLs that fsspec opens (s3://, gs://, https://, hf://, …).

A file behind a URL is read as one on disk is, a stretch at a time; nothing of it is kept. Which version of it was read
is what its server says of it (a tag, a date), since its content is known only by reading all of it.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Any

from unmask.config import SourceConfig
from unmask.errors import UserError, near_file, one_line

HUB = "hf:"
"""What a path begins with that the `datasets` library loads."""
JSON_ENDINGS = (".jsonl", ".ndjson")
TABLE_ENDING = ".parquet"
ENDINGS = (".txt", *JSON_ENDINGS, TABLE_ENDING)
"""What a directory is searched for, each but tables also with .gz; a file or glob may have any ending."""

_HUB_NAME = re.compile(r"[\w-][\w.-]*(/[\w.-]+)?(:[\w.-]+)?")
_URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_VERSIONS = ("ETag", "etag", "md5Hash", "commit_hash", "blob_id", "LastModified", "last_modified", "updated", "mtime")
"""What file systems call the version of a file; the first that is there is taken."""
_DRIVERS = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "az": "adlfs"}


@dataclass(frozen=True)
class Remote:
    """A file behind a URL, with what of `pathlib.Path` reading needs."""

    url: str
    size: int = 0
    """Bytes; 0 where the server does not say."""
    version: str = ""
    """What the server says of it that changes with it; "" = nothing."""
    system: Any = field(default=None, compare=False, repr=False)
    """fsspec's, of its protocol."""

    @property
    def name(self) -> str:
        return PurePosixPath(self.url.partition("?")[0]).name

    @property
    def suffix(self) -> str:
        return PurePosixPath(self.name).suffix

    def open(self, mode: str = "rb") -> IO[bytes]:
        stream: IO[bytes] = self.system.open(self.url, mode)
        return stream

    def __str__(self) -> str:
        return self.url


File = Path | Remote


def is_url(path: str) -> bool:
    """
    >>> is_url("s3://bucket/a.jsonl"), is_url("hf:org/data"), is_url("C:/a.txt")
    (True, False, False)
    """
    return _URL.match(path) is not None


def ending(path: File) -> str:
    name = path.name.lower().removesuffix(".gz")
    return PurePosixPath(name).suffix


def size_of(path: File) -> int:
    """Bytes as they lie there; 0 where nobody says."""
    return path.size if isinstance(path, Remote) else path.stat().st_size


def version_of(path: File) -> str:
    """What changes when somebody writes the file anew, as far as that is known without reading it."""
    return path.version if isinstance(path, Remote) else str(path.stat().st_mtime_ns)


def content_of(path: File) -> list[Any]:
    """What stands for the content of a file: its hash, or what the server says of it."""
    if isinstance(path, Remote):
        return [path.url, path.size, path.version]
    return [content_hash(path)]


def content_hash(path: Path) -> str:
    """32 hex digits of a file's bytes."""
    with reading(path), path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


@contextlib.contextmanager
def reading(path: File, advice: str = "") -> Iterator[None]:
    """What goes wrong while a file is read, as one sentence; behind a URL that may be nearly any error."""
    try:
        yield
    except UserError:
        raise
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or one_line(error)}{advice}") from error
    except Exception as error:
        if not isinstance(path, Remote):
            raise
        raise UserError(f"cannot read {path}: {one_line(error)}{advice}") from error


# ---------------------------------------------------------------- which there are


def files(source: SourceConfig) -> list[File]:
    """The files of a source, sorted by path; hidden ones and, in a directory, other endings are passed over.
    None of an hf: name."""
    if source.path.startswith(HUB) and not is_url(source.path):
        return []
    if not source.path:
        raise UserError("the corpus has no path: give a file, a directory, a glob, a URL or hf:NAME")
    if is_url(source.path):
        return list(_remote(source.path))
    path = Path(source.path).expanduser()
    if path.is_dir():
        every = [p for p in sorted(path.rglob("*")) if p.is_file() and not _hidden(p.relative_to(path))]
        return list(_known(every, f"the directory {path}", str(path)))
    if path.exists():
        return [path]
    if any(c in source.path for c in "*?["):
        found = [p for p in map(Path, sorted(glob.glob(str(path), recursive=True))) if p.is_file()]
        if not found:
            raise UserError(f"no file matches the corpus glob {source.path}")
        return list(found)
    raise _missing(source.path, path)


def _known(every: Sequence[File], what: str, path: str) -> Sequence[File]:
    found = [p for p in every if ending(p) in ENDINGS]
    if not found:
        others = sorted({p.suffix for p in every if p.suffix})[:5]
        more = f"; for its {', '.join(others)} files give a glob such as '{path}/*{others[0]}'" if others else ""
        raise UserError(f"{what} holds no .txt, .jsonl (both also .gz) or .parquet file{more}")
    return found


def _missing(given: str, path: Path) -> UserError:
    close = near_file(path)
    like_hub = not close and not path.suffix and _HUB_NAME.fullmatch(given)
    hub = f"; a name on the hub is given as hf:{given}" if like_hub else ""
    return UserError(f"no such corpus file: {given}{hub}{close}")


def _hidden(path: Path | PurePosixPath) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _remote(url: str) -> Sequence[File]:
    """The files behind a URL: one, those of a glob, or those under a directory."""
    system, place = _system(url)
    pattern = any(c in place for c in "*[") or ("?" in place and not url.lower().startswith("http"))
    try:
        if pattern:
            found = [p for p in system.glob(place) if not system.isdir(p)]
        elif system.isfile(place):
            found = [place]
        else:
            found = [p for p in system.find(place) if not _hidden(PurePosixPath(p[len(place) :]))]
        every = [_file(system, p) for p in sorted(found)]
    except FileNotFoundError:
        every = []
    except Exception as error:  # each file system has its own
        raise UserError(f"cannot reach {url}: {one_line(error)}; check the address, access and network") from error
    if not every:
        raise UserError(f"no file can be reached at {url}: check the address, access and network")
    return every if pattern or found == [place] else _known(every, url, url)


def _system(url: str) -> tuple[Any, str]:
    """(fsspec's file system, what it calls the place)."""
    import fsspec

    protocol = url.partition("://")[0].lower()
    try:
        system, place = fsspec.core.url_to_fs(url)
    except ImportError as error:
        driver = _DRIVERS.get(protocol, "")
        package = f"pip install {driver}" if driver else one_line(error)
        raise UserError(f"reading {url} needs the fsspec driver of {protocol}://: {package}") from error
    except ValueError as error:
        raise UserError(f"{url}: fsspec knows no {protocol}:// ({one_line(error)})") from error
    return system, place


def _file(system: Any, place: str) -> Remote:
    info = system.info(place)
    version = next((str(info[key]) for key in _VERSIONS if info.get(key)), "")
    return Remote(str(system.unstrip_protocol(place)), int(info.get("size") or 0), version, system)
