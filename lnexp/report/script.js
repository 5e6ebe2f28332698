/* The table of runs, its filters, and the run that is chosen. */
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
document.documentElement.classList.add("js");
const rows = [...document.querySelectorAll("#table tbody tr")];
const articles = [...document.querySelectorAll("article.run")];
const place = new Map(articles.map((article, i) => [article.id, i]));
let chosen = -1, cell = null, drawn = false;

/* Sorting: numbers by size, then Inf, then NaN; what is not known stands last both ways. */
function rank(td, numeric) {
  const by = td.dataset.by ?? td.textContent.trim();
  if (by === "" || by === "-") return [9, 0];
  if (!numeric) return [0, by];
  const order = { "-inf": [-1, 0], inf: [1, 0], nan: [2, 0] }[by.toLowerCase()];
  return order ?? [0, Number(by)];
}
function compare([a, x], [b, y], way) {
  if (a === 9 || b === 9) return a - b;
  return way * (a - b || (typeof x === "number" ? x - y : x.localeCompare(y, "en", { numeric: true })));
}
document.querySelectorAll("#table thead th").forEach((th, column, heads) => {
  th.firstElementChild.addEventListener("click", () => {
    const way = th.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    heads.forEach((other) => other.setAttribute("aria-sort", "none"));
    th.setAttribute("aria-sort", way > 0 ? "ascending" : "descending");
    const numeric = th.classList.contains("num");
    const keyed = rows.map((row, i) => [rank(row.cells[column], numeric), i, row]);
    keyed.sort((a, b) => compare(a[0], b[0], way) || a[1] - b[1]);
    byId("table").tBodies[0].append(...keyed.map(([, , row]) => row));
  });
});

const selects = [...document.querySelectorAll("select[data-filter]")];
const texts = rows.map((row) => row.textContent.toLowerCase());
function passing() {
  const words = byId("words").value.toLowerCase().split(/\s+/).filter(Boolean);
  return rows.map((_, i) => i).filter((i) => {
    const run = data.runs[i];
    return (cell === null || run.cell === cell)
      && selects.every((s) => s.value === "" || run.filters[s.dataset.filter] === Number(s.value))
      && words.every((word) => texts[i].includes(word));
  });
}
function filter() {
  const shown = passing(), kept = new Set(shown);
  rows.forEach((row, i) => { row.hidden = !kept.has(i); });
  byId("shown").textContent = shown.length + " of " + rows.length + " runs shown";
  byId("cell").hidden = cell === null;
  if (cell !== null) byId("cell").textContent = "one cell: " + data.cells[cell] + " ✕";
  keep();
  drawLoss();
}
byId("filters").addEventListener("input", filter);
byId("filters").addEventListener("submit", (event) => event.preventDefault());
byId("filters").addEventListener("reset", () => { cell = null; setTimeout(filter); });
byId("cell").addEventListener("click", () => { cell = null; filter(); byId("words").focus(); });
document.querySelectorAll("[data-cell]").forEach((button) => button.addEventListener("click", () => {
  cell = Number(button.dataset.cell);
  filter();
  byId("runs").scrollIntoView();
  byId("cell").focus();
}));

function drawLoss() {
  if (!drawn || chosen < 0) return;
  const sweep = data.runs[chosen].sweep, name = data.sweeps[sweep].name;
  const shown = passing().filter((i) => data.runs[i].sweep === sweep);
  const without = charts.loss(data, shown, chosen);
  byId("loss-words").textContent = name + ": " + (shown.length - without.length) + " runs, those that the filters above show. " + data.sweeps[sweep].levelWords;
  const series = new Set(shown.map((i) => data.runs[i].series));
  document.querySelectorAll("#series li").forEach((li) => { li.hidden = !series.has(Number(li.dataset.series)); });
  const list = byId("no-curve");
  list.textContent = without.length ? "No loss was recorded in " + without.length + " of them: " : "";
  without.forEach((i, k) => {
    const link = document.createElement("a");
    link.href = "#" + encodeURI(articles[i].id);
    link.textContent = data.runs[i].name;
    list.append(k ? ", " : "", link, " (" + data.runs[i].outcome + ")");
  });
}

const slider = byId("step");
function drawLayers() {
  if (!drawn) return;
  const map = data.runs[chosen].gradients, column = Number(slider.value);
  const words = charts.layers(data, chosen, column);
  const at = map.steps ? "step " + charts.span(map.steps[column]) + " (" + (column + 1) + " of " + map.steps.length + "): " : "";
  byId("step-words").textContent = at + words;
}
slider.addEventListener("input", drawLayers);

function drawRun() {
  if (!drawn || chosen < 0) return;
  const run = data.runs[chosen], there = Boolean(run.gradients.steps);
  slider.max = there ? run.gradients.steps.length - 1 : 0;
  slider.value = slider.max;
  slider.disabled = !there;
  byId("layers-words").textContent = run.name + ": " + run.outcome.replaceAll("_", " ");
  drawLayers();
  const legend = charts.heat(data, chosen);
  byId("heat-words").textContent = run.name + (there ? "" : ": no gradient was read by layer");
  byId("heat-legend").replaceChildren(...legend.map(([colour, words]) => {
    const li = document.createElement("li"), swatch = document.createElement("span");
    swatch.className = "swatch";
    swatch.style.background = colour;
    li.append(swatch, words);
    return li;
  }));
  drawLoss();
}

/* `open`: also go to its explanation. */
function choose(i, open = false) {
  if (!(i >= 0 && i < articles.length)) return;
  if (i !== chosen) {
    articles[chosen]?.classList.remove("chosen");
    rows[chosen]?.classList.remove("chosen");
    chosen = i;
    articles[i].classList.add("chosen");
    rows[i].classList.add("chosen");
    byId("chosen").value = String(i);
    byId("open").href = "#" + encodeURI(articles[i].id);
    drawRun();
  }
  if (open) {
    articles[i].scrollIntoView();
    articles[i].querySelector("h3").focus({ preventScroll: true });
  }
}
function named(hash) {
  try { return place.get(decodeURIComponent(hash.slice(1))); } catch { return undefined; }
}
addEventListener("hashchange", () => choose(named(location.hash) ?? -1, true));
document.addEventListener("click", (event) => {  // also where the address names that run already
  const link = event.target.closest?.("a[href^='#']");
  if (link) choose(named(link.hash) ?? -1, true);
});
byId("chosen").addEventListener("change", (event) => choose(Number(event.target.value)));
byId("before").addEventListener("click", () => choose(chosen - 1));
byId("after").addEventListener("click", () => choose(chosen + 1));
addEventListener("beforeprint", () => { charts.print(true); drawRun(); });
addEventListener("afterprint", () => { charts.print(false); drawRun(); });

/* `lnexp report --watch` alone: ask this page's own address whether there is a newer one. */
function watch(stamp) {
  setInterval(async () => {
    try {
      const answer = await fetch(location.pathname, { method: "HEAD", cache: "no-store" });
      if (answer.ok && answer.headers.get("ETag") !== '"' + stamp + '"') location.reload();
    } catch { /* the server is gone: the page stays as it is */ }
  }, 2000);
}
const STORE = "lnexp " + location.pathname + " " + document.title;
function keep() {
  try { sessionStorage.setItem(STORE, JSON.stringify([byId("words").value, cell, selects.map((s) => s.value)])); } catch { /* no storage */ }
}
function restore() {
  try {
    const [words, one, values] = JSON.parse(sessionStorage.getItem(STORE));
    byId("words").value = words;
    cell = one !== null && one < data.cells.length ? one : null;
    selects.forEach((s, i) => { if ([...s.options].some((o) => o.value === values[i])) s.value = values[i]; });
  } catch { /* nothing kept */ }
}

restore();
const again = performance.getEntriesByType("navigation")[0]?.type === "reload";  // stay where it was
const asked = named(location.hash);
choose(asked ?? data.first, asked !== undefined && !again);
filter();
charts.start(JSON.parse(byId("plots").textContent)).then(() => {
  drawn = true;
  charts.onTap((i) => choose(i));
  charts.onScheme(drawRun);
  drawRun();
  document.documentElement.dataset.ready = "yes";
});
