(() => {
  "use strict";
  const root = document.documentElement;
  root.classList.add("js");

  const form = document.querySelector(".switches");
  const charts = [...document.querySelectorAll(".chart")];
  const announced = document.getElementById("announced");
  const measure = document.getElementById("measure");
  const show = (say) => {
    const axis = form.querySelector("input:checked").value;
    const name = measure ? measure.value : charts[0].dataset.measure;
    for (const chart of charts) {
      chart.hidden = chart.dataset.axis !== axis || chart.dataset.measure !== name;
      if (!chart.hidden && say) announced.textContent = chart.querySelector(".plot").getAttribute("aria-label");
    }
  };
  if (form) {
    form.addEventListener("change", () => show(true));
    form.addEventListener("submit", (event) => event.preventDefault());
    show(false);
  }

  const button = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const tell = () => button.setAttribute("aria-pressed", String(dark()));
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    tell();
  });
  system.addEventListener("change", tell);
  tell();

  let folded = [];
  addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("details:not([open])")];
    for (const one of folded) one.open = true;
  });
  addEventListener("afterprint", () => {
    for (const one of folded) one.open = false;
  });
})();
