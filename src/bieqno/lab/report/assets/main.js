// Every figure that has data becomes interactive; without this script its static image stays.
document.documentElement.classList.add("scripted");
for (const figure of document.querySelectorAll("[data-chart]")) {
  const chart = PAGE.charts[figure.dataset.chart];
  const host = figure.querySelector(".live");
  ({ plot, images, orbit })[chart.kind](host, chart, figure.querySelector("h4").textContent);
}
document.documentElement.dataset.ready = "yes";
