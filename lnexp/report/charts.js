"use strict";
/* The three charts. A value that a scale cannot show has a named place beside it: NaN and Inf
   above, an exact 0 below a logarithm. Nothing is left out. */
const charts = (() => {
  const NAN = 65535, INF = 65534, ZERO = 65533, ABSENT = 65532, LEVELS = 65531;
  const BROKEN = { nan: "#e6007e", inf: "#ff7f00", zero: "#ffffff", absent: "#8a9099" };
  const plots = {}, sources = {};
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let printing = false;
  const isDark = () => dark.matches && !printing;
  const number = (v) => (typeof v === "number" ? v : { nan: NaN, inf: Infinity, "-inf": -Infinity }[v]);

  function text(v) {
    if (Number.isNaN(v)) return "NaN";
    if (!Number.isFinite(v)) return v > 0 ? "Inf" : "-Inf";
    if (v === 0) return "exactly 0";
    const size = Math.abs(v);
    return size >= 1e-3 && size < 1e5 ? String(+v.toPrecision(4)) : v.toExponential(2);
  }

  async function start(items) {
    for (const [name, item] of Object.entries(items)) {
      const manager = await Bokeh.embed.embed_item(item, item.target_id);
      const plot = [...manager][0].model;
      plots[name] = plot;
      for (const r of plot.renderers) sources[r.data_source.name] = r.data_source;
    }
    sources.ink = plots.loss.renderers.find((r) => r.data_source.name === "counts").glyph;
    paint();
    dark.addEventListener("change", paint);
  }

  function paint() {
    const ink = isDark() ? "#e8eaed" : "#1c2024", grid = isDark() ? "#3b434c" : "#dfe3e7";
    const ground = isDark() ? "#14181d" : "#ffffff";
    sources.ink.text_color = ink;
    for (const plot of Object.values(plots)) {
      plot.setv({ outline_line_color: grid, background_fill_color: ground, border_fill_color: ground });
      for (const axis of [...plot.left, ...plot.below]) {
        if (axis.type === "ColorBar") {
          axis.setv({ title_text_color: ink, major_label_text_color: ink });
          continue;
        }
        axis.setv({ axis_label_text_color: ink, major_label_text_color: ink, axis_line_color: ink, major_tick_line_color: ink });
      }
      for (const line of plot.center) if (line.type === "Grid") line.setv({ grid_line_color: grid });
    }
    plots.heat.background_fill_color = BROKEN.absent;
  }

  function scale(values, log) {
    let low = Infinity, high = -Infinity, zeros = false, nan = false, inf = false;
    for (const v of values) {
      if (Number.isNaN(v)) nan = true;
      else if (!Number.isFinite(v)) inf = true;
      else if (log && v <= 0) zeros = true;
      else { const at = log ? Math.log10(v) : v; low = Math.min(low, at); high = Math.max(high, at); }
    }
    const none = low > high;
    if (none) { low = 0; high = 1; }
    const least = log ? 0.6 : 0.02 * Math.max(Math.abs(low), Math.abs(high)) + 1e-6;
    if (high - low < least) { const middle = (low + high) / 2; low = middle - least / 2; high = middle + least / 2; }
    const span = high - low;
    const zero = low - 0.13 * span;
    const infAt = high + 0.12 * span, nanAt = high + (inf ? 0.22 : 0.12) * span;
    const place = (v) => Number.isNaN(v) ? nanAt : !Number.isFinite(v) ? infAt : !log ? v : v <= 0 ? zero : Math.log10(v);
    const top = nan || inf ? Math.max(nan ? nanAt : 0, inf ? infAt : -Infinity, high) : high;
    return { log, none, low, high, span, zeros, nan, inf, zero, infAt, nanAt, place, start: zeros ? zero - 0.07 * span : low - 0.05 * span, end: (nan || inf ? (nan ? nanAt : infAt) : top) + 0.1 * span };
  }

  function ticks(s) {
    const found = new Map();
    const add = (at, words) => { if (!s.none && at >= s.low - 0.02 * s.span && at <= s.high + 0.02 * s.span) found.set(at, words); };
    if (s.log && s.span >= 2) {
      const every = Math.max(1, Math.ceil(s.span / 7));
      for (let d = Math.ceil(s.low - 0.02 * s.span); d <= s.high + 0.02 * s.span; d++) if (d % every === 0) add(d, d >= -3 && d <= 4 ? String(+(10 ** d).toPrecision(1)) : "1e" + d);
    } else if (s.log) {
      for (let d = Math.floor(s.low) - 1; d <= s.high + 1; d++) for (const m of [1, 2, 5]) add(d + Math.log10(m), text(m * 10 ** d));
    } else {
      const rough = s.span / 6, ten = 10 ** Math.floor(Math.log10(rough));
      const every = [1, 2, 5, 10].map((m) => m * ten).find((m) => m >= rough);
      for (let n = Math.ceil(s.low / every) - 1; n * every <= s.high + every; n++) add(n * every, String(+(n * every).toPrecision(8)));
    }
    if (s.zeros) found.set(s.zero, "exactly 0");
    if (s.inf) found.set(s.infAt, "Inf");
    if (s.nan) found.set(s.nanAt, "NaN");
    return found;
  }

  function dress(plot, s, x0, x1, label) {
    const named = ticks(s), axis = plot.left[0];
    axis.ticker.ticks = [...named.keys()];
    axis.setv({ major_label_overrides: named, axis_label: label });
    plot.y_range.setv({ start: s.start, end: s.end, reset_start: s.start, reset_end: s.end });
    across(plot, x0, x1);
    for (const band of plot.center) {
      if (band.name === "zero") band.setv({ visible: s.zeros, bottom: s.start, top: s.low - 0.065 * s.span });
      if (band.name === "broken") band.setv({ visible: s.nan || s.inf, bottom: s.high + 0.06 * s.span, top: s.end });
    }
  }

  const across = (plot, start, end) => plot.x_range.setv({ start, end, reset_start: start, reset_end: end });
  const fill = (name, rows, columns) => { sources[name].data = Object.fromEntries(columns.map((c) => [c, rows.map((r) => r[c])])); };

  /* The lines of `shown`; the chosen one in front. Returns the runs without a curve. */
  function loss(data, shown, chosen) {
    const without = shown.filter((i) => !data.runs[i].curve.steps);
    const there = shown.filter((i) => data.runs[i].curve.steps);
    if (there.includes(chosen)) { there.splice(there.indexOf(chosen), 1); there.push(chosen); }
    const levels = there.length ? data.sweeps[data.runs[there[0]].sweep].levels : [];
    const curves = there.map((i) => data.runs[i].curve.loss.map(number));
    const every = [...curves.flat(), ...levels];
    const most = every.reduce((m, v) => (Number.isFinite(v) && v > m ? v : m), 0);
    const s = scale(every, most > 8 * Math.max(1, ...levels));
    let last = 1;
    const lines = [], marks = [];
    there.forEach((i, k) => {
      const run = data.runs[i], series = data.series[run.series], steps = run.curve.steps;
      const colour = isDark() ? series.dark : series.light;
      const facts = { run: run.name, words: series.words + ": " + run.outcome.replaceAll("_", " "), i, colour };
      const upTo = curves[k].findIndex((v) => !Number.isFinite(v));
      const whole = upTo < 0 ? steps.length : upTo;
      last = Math.max(last, steps[steps.length - 1]);
      lines.push({ ...facts, xs: steps.slice(0, whole), ys: curves[k].slice(0, whole).map(s.place), dash: series.dash, width: i === chosen ? 3.5 : 1.3, alpha: i === chosen ? 1 : there.length > 12 ? (isDark() ? 0.6 : 0.4) : 0.75 });
      const mark = (at, marker, words) => marks.push({ ...facts, x: steps[at], y: s.place(curves[k][at]), marker, text: words, ink: marker === "x" ? colour : isDark() ? "#ffffff" : "#000000" });
      const end = steps.length - 1, before = marks.length;
      curves[k].forEach((v, at) => { if (!Number.isFinite(v)) mark(at, Number.isNaN(v) ? "x" : "triangle", text(v) + " at step " + steps[at]); });
      if (run.outcome === "nonfinite" && Number.isFinite(curves[k][end])) mark(end, "diamond", "non-finite, loss still " + text(curves[k][end]) + " at step " + steps[end]);
      const ended = { failed: "star", interrupted: "hex", running: "inverted_triangle" }[run.outcome];
      if (ended && Number.isFinite(curves[k][end])) mark(end, ended, run.outcome + " after step " + steps[end]);
      else if (whole === 1 && marks.length === before) mark(0, "circle", text(curves[k][0]) + " at step " + steps[0]);
    });
    dress(plots.loss, s, -0.02 * last, 1.03 * last, s.log ? "loss (nats, log scale)" : "loss (nats)");
    fill("lines", lines, ["xs", "ys", "colour", "dash", "width", "alpha", "run", "words", "i"]);
    fill("marks", marks, ["x", "y", "colour", "ink", "marker", "run", "words", "text", "i"]);
    fill("counts", counted(marks), ["x", "y", "text"]);
    fill("levels", levels.map((v) => ({ xs: [-last, 2 * last], ys: [s.place(v), s.place(v)] })), ["xs", "ys"]);
    for (const tool of plots.loss.toolbar.tools) if (tool.name === "loss-line") tool.tooltips = [["run", "@run"], ["", "@words"], ["step", "$data_x{0}"], s.log ? ["log10 loss", "$data_y{0.00}"] : ["loss", "$data_y{0.000}"]];
    return without;
  }

  /* How many runs a mark stands for, where several lie on one another. */
  function counted(marks) {
    const at = new Map();
    for (const { x, y, marker } of marks) at.set(x + " " + y + " " + marker, { x, y, n: (at.get(x + " " + y + " " + marker)?.n ?? 0) + 1 });
    return [...at.values()].filter(({ n }) => n > 1).map(({ x, y, n }) => ({ x, y, text: String(n) }));
  }

  /* [layer][column] of a run's map: a norm, NaN, Infinity, 0, or undefined where not measured. */
  function decode(map) {
    if (!map.values) {
      const bytes = Uint8Array.from(atob(map.codes), (c) => c.charCodeAt(0)), n = map.steps.length;
      const special = { [NAN]: NaN, [INF]: Infinity, [ZERO]: 0, [ABSENT]: undefined };
      map.values = map.layers.map((_, row) => map.steps.map((_, col) => {
        const at = 2 * (row * n + col), code = bytes[at] | (bytes[at + 1] << 8);
        return code in special ? special[code] : 10 ** (map.low + (code / LEVELS) * (map.high - map.low));
      }));
    }
    return map.values;
  }

  const span = ([a, b]) => (a === b ? String(a) : a + " to " + b);
  function where([a, b], depth) {
    if (a < 0) return "embedding";
    if (a >= depth) return "head and final norm";
    return a === b ? "block " + (a + 1) + " of " + depth : "blocks " + (a + 1) + " to " + (b + 1) + " of " + depth;
  }

  /* Embedding and head a little apart from the blocks. */
  function ends(depth) {
    const gap = Math.max(1, 0.16 * depth);
    return { gap, at: (l) => (l < 0 ? -gap : l >= depth ? depth - 1 + gap : l) };
  }

  function blockTicks(depth, at) {
    const some = [...new Set([0, 0.25, 0.5, 0.75, 1].map((q) => Math.round(q * (depth - 1))))];
    return new Map([[at(-1), "embed"], ...some.map((l) => [l, String(l + 1)]), [at(depth), "head"]]);
  }

  function layers(data, chosen, column) {
    const run = data.runs[chosen], map = run && run.gradients;
    const empty = !map || !map.layers;
    const peers = empty ? [] : data.runs.filter((r) => r.cell === run.cell && r !== run && r.gradients.layers && r.gradients.depth === map.depth);
    const every = empty ? [] : [run, ...peers].flatMap((r) => decode(r.gradients).flat()).filter((v) => v !== undefined);
    const s = scale(every, true), depth = empty ? 1 : map.depth, { gap, at } = ends(depth);
    dress(plots.layers, s, at(-1) - 0.5 * gap, at(depth) + 0.5 * gap, "gradient norm (log scale)");
    const x = blockTicks(depth, at), axis = plots.layers.below[0];
    axis.ticker.ticks = [...x.keys()];
    axis.setv({ major_label_overrides: x, axis_label: "block of " + depth + " (layer = block - 1)" });
    if (empty) {
      fill("others", [], ["xs", "ys", "run"]); fill("line", [], ["xs", "ys"]);
      fill("dots", [], ["x", "y", "marker", "colour", "where", "text", "run", "size", "ink"]);
      return "not read by layer (measure.level off, or no step was made)";
    }
    const step = map.steps[column][1], dots = [], others = [];
    const profile = (r, col) => r.gradients.layers.map((l, row) => [l, decode(r.gradients)[row][col]]).filter(([, v]) => v !== undefined);
    const marker = (v) => (Number.isNaN(v) ? "x" : v === Infinity ? "triangle" : v === 0 ? "inverted_triangle" : "circle");
    const dot = (r, [l, v], size, colour) => dots.push({ x: at(l[0]), y: s.place(v), marker: marker(v), colour, ink: Number.isNaN(v) ? colour : isDark() ? "#ffffff" : "#000000", where: where(l, depth), text: text(v), run: r.name, size });
    const line = (points) => ({ xs: points.map(([l]) => at(l[0])), ys: points.map(([l, v]) => (l[0] >= 0 && l[0] < depth && Number.isFinite(v) && v > 0 ? s.place(v) : NaN)) });
    for (const peer of peers) {
      const col = peer.gradients.steps.findLastIndex(([a]) => a <= step);
      if (col < 0 || step > peer.gradients.steps[peer.gradients.steps.length - 1][1]) continue;
      const points = profile(peer, col);
      others.push({ ...line(points), run: peer.name });
      for (const p of points) if (!(Number.isFinite(p[1]) && p[1] > 0)) dot(peer, p, 5, "#888888");
    }
    const points = profile(run, column), own = isDark() ? "#56b4e9" : "#0072b2";
    fill("others", others, ["xs", "ys", "run"]);
    fill("line", [line(points)], ["xs", "ys"]);
    for (const p of points) dot(run, p, 7, own);
    fill("dots", dots, ["x", "y", "marker", "colour", "where", "text", "run", "size", "ink"]);
    return said(points, depth);
  }

  function said(points, depth) {
    const count = { NaN: 0, Inf: 0, "exactly 0": 0 };
    let low = null, high = null;
    for (const [l, v] of points) {
      if (!Number.isFinite(v) || v === 0) count[text(v)]++;
      else { if (!low || v < low[1]) low = [l, v]; if (!high || v > high[1]) high = [l, v]; }
    }
    const words = Object.entries(count).filter(([, n]) => n).map(([k, n]) => n + " " + k);
    const finite = low ? "smallest " + text(low[1]) + " (" + where(low[0], depth) + "), largest " + text(high[1]) + " (" + where(high[0], depth) + ")" : "none is finite and above 0";
    return points.length + " places: " + [...words, finite].join(", ");
  }

  /* Returns [colour, words] for the legend. */
  function heat(data, chosen) {
    const run = data.runs[chosen], map = run && run.gradients, sides = ["left", "right", "bottom", "top"], columns = [...sides, "colour", "where", "steps", "text"];
    if (!map || !map.layers) { fill("cells", [], columns); fill("zeros", [], sides); return []; }
    const values = decode(map), n = map.steps.length, depth = map.depth, rows = [], count = { nan: 0, inf: 0, zero: 0, absent: 0 };
    const bar = plots.heat.below.find((m) => m.type === "ColorBar"), mapper = bar.color_mapper;
    const high = map.high > map.low ? map.high : map.low + 1;
    mapper.setv({ low: map.low, high });
    const colours = mapper.palette.map((c) => (typeof c === "number" ? "#" + (c >>> 8).toString(16).padStart(6, "0") : c));
    const right = (c) => (c + 1 < n ? map.steps[c + 1][0] - 0.5 : map.steps[c][1] + (n > 1 ? Math.max(0.5, map.steps[c][0] - map.steps[c - 1][1] - 0.5) : 0.5));
    values.forEach((row, r) => row.forEach((v, c) => {
      if (v === undefined) { count.absent++; return; }
      const kind = Number.isNaN(v) ? "nan" : v === Infinity ? "inf" : v === 0 ? "zero" : "";
      if (kind) count[kind]++;
      const level = Math.round(((Math.log10(v) - map.low) / (high - map.low)) * (colours.length - 1));
      rows.push({ left: map.steps[c][0] - 0.5, right: right(c), bottom: map.layers[r][0] - 0.5, top: map.layers[r][1] + 0.5, colour: kind ? BROKEN[kind] : colours[Math.max(0, Math.min(colours.length - 1, level))], kind, where: where(map.layers[r], depth), steps: span(map.steps[c]), text: text(v) });
    }));
    fill("cells", rows, columns);
    fill("zeros", rows.filter((r) => r.kind === "zero"), sides);
    const y = new Map([...blockTicks(depth, (l) => l)].filter(([l]) => l < 0 || l >= depth || (l > 0.04 * depth && l < 0.96 * depth - 1) || depth < 12));
    plots.heat.left[0].ticker.ticks = [...y.keys()];
    plots.heat.left[0].setv({ major_label_overrides: y, axis_label: "block" });
    plots.heat.y_range.setv({ start: -1.5, end: depth + 0.5, reset_start: -1.5, reset_end: depth + 0.5 });
    across(plots.heat, map.steps[0][0] - 0.5, right(n - 1));
    const all = rows.length + count.absent, of = (k) => count[k] + " of " + all + " cells";
    return [[BROKEN.nan, "NaN: " + of("nan")], [BROKEN.inf, "Inf: " + of("inf")], ["repeating-linear-gradient(-45deg, #444444 0 1px, #ffffff 1px 5px)", "exactly 0: " + of("zero")], ...(count.absent ? [[BROKEN.absent, "not measured: " + of("absent")]] : [])];
  }

  function onTap(choose) {
    for (const name of ["lines", "marks"]) {
      const picked = sources[name].selected.properties.indices;
      picked.change.connect(() => { const at = sources[name].selected.indices[0]; if (at !== undefined) choose(sources[name].data.i[at]); });
    }
  }

  const print = (on) => { printing = on; paint(); };
  return { start, loss, layers, heat, onTap, print, span, onScheme: (f) => dark.addEventListener("change", f) };
})();
