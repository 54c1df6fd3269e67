"use strict";
// Draws the graph (only what can be seen of it), shows details of a layer, sorts and searches the table of layers.
(() => {
  const WIDTH = 204, HEIGHT = 38, RANK = 58, LANE = 226, GUTTER = 13, PAD = 24;
  const SVG = "http://www.w3.org/2000/svg";
  const byId = (id) => document.getElementById(id);
  const data = JSON.parse(byId("data").textContent);
  const table = byId("layers-table"), body = table.tBodies[0];
  const rows = data.layers.map((_, i) => byId(`layer-${i}`));
  const titles = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
  const canvas = byId("canvas"), sheet = byId("sheet"), details = byId("details");

  const linkOf = (number) => rows[number].cells[1].querySelector("a");

  data.layers.forEach((own, i) => { linkOf(i).title = data.prefix.slice(0, own.p ?? 0) + linkOf(i).textContent; });

  // Items are inputs, layers, outputs of the graph that is drawn, as its edges number them.
  let flow, before, after, view, zoom = 1, chosen = -1, hits = new Set(), pending = false;
  const layerOf = (item) => (item >= flow.inputs.length && item < flow.inputs.length + flow.layers ? item - flow.inputs.length + flow.first : -1);
  const itemOf = (number) => number - flow.first + flow.inputs.length;
  const holds = (each, number) => number >= each.first && number < each.first + each.layers;
  const endName = (item) => flow.inputs[item] ?? flow.outputs[item - flow.inputs.length - flow.layers];
  const nameOf = (item) => (layerOf(item) < 0 ? endName(item) : linkOf(layerOf(item)).title);
  const kindOf = (item) => (layerOf(item) >= 0 ? rows[layerOf(item)].cells[2].textContent : item < flow.inputs.length ? "input" : "output");
  const inTable = (item) => (layerOf(item) < 0 ? nameOf(item) : linkOf(layerOf(item)).textContent);
  const shortName = (item) => inTable(item).replace(/__matmul_converted$/, "").replace(/_output_0$/, "") || nameOf(item);
  const levelOf = (item) => (layerOf(item) < 0 ? data.unmeasured : data.layers[layerOf(item)].v);

  function setFlow(index) {
    flow = data.flows[index];
    before = Array.from({ length: flow.inputs.length + flow.layers + flow.outputs.length }, () => []);
    after = before.map(() => []);
    for (const [a, b] of flow.edges) { after[a].push(b); before[b].push(a); }
    chosen = -1;
    if (byId("flow")) byId("flow").value = index;
    setView(byId("simplify").checked ? 1 : 0);
  }

  function make(tag, attributes, text) {
    const node = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    if (text !== undefined) node.textContent = text;
    return node;
  }

  function element(tag, text, kind) {
    const node = document.createElement(tag);
    if (text !== undefined) node.textContent = text;
    if (kind) node.className = kind;
    return node;
  }

  function setView(index) {
    const raw = flow.views[index];
    const boxes = raw.b.map(([rank, lane, ...items]) => ({ rank, lane, items }));
    const boxOf = new Map(boxes.flatMap((box, i) => box.items.map((item) => [item, i])));
    const left = PAD + raw.g * GUTTER + 8;
    view = { boxes, edges: raw.e, boxOf, left, width: left + raw.l * LANE + PAD, height: raw.r * RANK + 2 * PAD };
    resize();
  }

  function resize() {
    sheet.style.width = `${view.width * zoom}px`;
    sheet.style.height = `${view.height * zoom}px`;
    schedule();
  }

  const boxX = (box) => view.left + box.lane * LANE;
  const boxY = (box) => PAD + box.rank * RANK;

  function schedule() {
    if (!pending) { pending = true; requestAnimationFrame(draw); }
  }

  function draw() {
    pending = false;
    const x = canvas.scrollLeft / zoom, y = canvas.scrollTop / zoom;
    const w = canvas.clientWidth / zoom, h = canvas.clientHeight / zoom;
    const svg = make("svg", { width: canvas.clientWidth, height: canvas.clientHeight, viewBox: `${x} ${y} ${w} ${h}`, "aria-hidden": "true" });
    const first = (y - PAD) / RANK - 1, end = (y + h - PAD) / RANK + 1;
    const on = view.boxOf.get(chosen);
    const lit = [];
    for (const [a, b, gutter] of view.edges) {
      if (view.boxes[a].rank > end || view.boxes[b].rank < first) continue;
      const touches = a === on || b === on;
      const line = make("path", { class: touches ? "edge on" : "edge", d: route(view.boxes[a], view.boxes[b], gutter) });
      if (touches) lit.push(line); else svg.append(line);
    }
    svg.append(...lit);
    view.boxes.forEach((box, i) => {
      if (box.rank < first || box.rank > end) return;
      const left = boxX(box);
      if (left > x + w || left + WIDTH < x) return;
      svg.append(drawBox(box, i, i === on));
    });
    sheet.replaceChildren(svg);
  }

  function route(a, b, gutter) {
    const x0 = boxX(a) + WIDTH / 2, y0 = boxY(a) + HEIGHT, x1 = boxX(b) + WIDTH / 2, y1 = boxY(b);
    if (gutter < 0) {
      if (x0 === x1) return `M${x0} ${y0}V${y1}`;
      const bend = (RANK - HEIGHT) * 0.9;
      return `M${x0} ${y0}C${x0} ${y0 + bend} ${x1} ${y1 - bend} ${x1} ${y1}`;
    }
    const x = view.left - 8 - GUTTER * (gutter + 1) + GUTTER / 2, r = 5, down = y0 + 8, up = y1 - 8;
    return `M${x0} ${y0}V${down - r}q0 ${r} ${-r} ${r}H${x + r}q${-r} 0 ${-r} ${r}V${up - r}q0 ${r} ${r} ${r}H${x1 - r}q${r} 0 ${r} ${r}V${y1}`;
  }

  function worstOf(items) {
    const levels = items.map(levelOf).filter((level) => level !== data.unmeasured);
    return levels.length ? Math.max(...levels) : data.unmeasured;
  }

  function leading(items) {  // of a chain: the least exact layer, or the one with a weight
    const worst = worstOf(items);
    const weighty = items.filter((item) => layerOf(item) >= 0 && rows[layerOf(item)].cells[4].textContent);
    const least = items.filter((item) => levelOf(item) === worst);
    return weighty.find((item) => least.includes(item)) ?? (worst === data.unmeasured || !worst ? weighty[0] : undefined) ?? least[0];
  }

  function drawBox(box, index, on) {
    const [x, y] = [boxX(box), boxY(box)];
    const end = layerOf(box.items[0]) < 0;
    const hit = box.items.some((item) => hits.has(item));
    const group = make("g", { class: `box${on ? " on" : ""}${hit ? " hit" : ""}${end ? " end" : ""}`, "data-box": index });
    group.append(make("rect", { x, y, width: WIDTH, height: HEIGHT, rx: 7 }));
    if (!end) group.append(make("rect", { class: `stripe l${worstOf(box.items)}`, x: x + 5, y: y + 6, width: 5, height: HEIGHT - 12, rx: 2.5 }));
    group.append(make("text", { class: "name", x: x + 17, y: y + 16 }, clip(titleOf(box), 23)));
    group.append(make("text", { x: x + 17, y: y + 31 }, tail(captionOf(box), 26)));
    group.append(make("title", {}, box.items.map((item) => `${kindOf(item)} ${nameOf(item)}`).slice(0, 12).join("\n")));
    return group;
  }

  function titleOf(box) {
    const kinds = box.items.map(kindOf);
    return kinds.length === 1 ? kinds[0] : `${kinds.length} layers: ${[...new Set(kinds)].join(", ")}`;
  }

  function captionOf(box) {
    const known = box.items.map((item) => data.layers[layerOf(item)]?.q).filter((value) => value < 60);
    const worst = known.length ? `${Math.min(...known)} dB ` : "";
    return worst + shortName(box.items[box.items.length - 1]);
  }

  const clip = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}\u2026` : text);

  function tail(text, most) {  // the end of a name tells most; what is measured stands before it
    if (text.length <= most) return text;
    const cut = text.match(/^-?[\d.]+ dB /)?.[0] ?? "";
    return `${cut}\u2026${text.slice(cut.length - most + 1)}`;
  }

  function choose(item, { scroll = true, table = true } = {}) {
    chosen = item;
    const number = layerOf(item);
    for (const row of body.querySelectorAll('[aria-selected="true"]')) row.removeAttribute("aria-selected");
    if (number >= 0) {
      rows[number].setAttribute("aria-selected", "true");
      if (table) {
        const box = rows[number].closest(".tall");
        box.scrollTop = rows[number].offsetTop - box.clientHeight / 2;
      }
      history.replaceState(null, "", `#layer-${number}`);
    }
    if (!view.boxOf.has(item) && item >= 0) { byId("simplify").checked = false; setView(0); }
    if (scroll) reveal(item);
    describe(item);
    schedule();
  }

  function chooseLayer(number, how) {
    if (!holds(flow, number)) setFlow(data.flows.findIndex((each) => holds(each, number)));
    choose(itemOf(number), how);
  }

  function reveal(item) {
    const box = view.boxes[view.boxOf.get(item)];
    if (!box) return;
    canvas.scrollTop = (boxY(box) + HEIGHT / 2) * zoom - canvas.clientHeight / 2;
    const x = boxX(box) * zoom;
    if (x < canvas.scrollLeft || x + WIDTH * zoom > canvas.scrollLeft + canvas.clientWidth) {
      canvas.scrollLeft = x - (canvas.clientWidth - WIDTH * zoom) / 2;
    }
  }

  function describe(item) {
    const number = layerOf(item);
    const parts = [element("h3", nameOf(item))];
    if (number < 0) parts.push(element("p", kindOf(item), "hint"));
    else parts.push(...layerParts(number));
    const box = view.boxes[view.boxOf.get(item)];
    parts.push(...links("Reads", before[item]), ...links("Read by", after[item]));
    if (box && box.items.length > 1) parts.push(...links("In this chain", box.items));
    details.replaceChildren(...parts);
  }

  function layerParts(number) {
    const own = data.layers[number], cells = rows[number].cells, list = element("dl");
    const add = (name, value) => { if (value) list.append(element("dt", name), element("dd", value)); };
    add("Computes", own.t);
    for (let i = 3; i < cells.length; i++) add(titles[i], cells[i].textContent);
    if (own.with !== undefined) add("Measured with", linkOf(own.with).textContent);
    const flag = rows[number].querySelector(".flag");
    const parts = flag ? [element("p", flag.textContent, "flag"), list] : [list];
    const drawn = document.querySelector(`[data-weight="${number}"] svg`);
    const spread = own.h ? histogram(own.h) : drawn?.cloneNode(true);
    if (spread) parts.push(element("h4", spread.querySelector(".before") ? "Weight, and as a line before it was rounded" : "Weight"), spread);
    if (own.o) parts.push(element("h4", "Source"), listOf(own.o.map((name) => element("span", name))));
    return parts;
  }

  function histogram([low, high, shape, line]) {
    const svg = make("svg", { class: "histogram", viewBox: "0 0 240 88", role: "img", "aria-label": `Histogram from ${low} to ${high}` });
    svg.append(make("path", { class: "after", d: shape }));
    if (line) svg.append(make("path", { class: "before", d: line }));
    svg.append(make("text", { x: 0, y: 85 }, low), make("text", { x: 240, y: 85, "text-anchor": "end" }, high));
    return svg;
  }

  function listOf(nodes) {
    const list = element("ul");
    for (const node of nodes) { const entry = element("li"); entry.append(node); list.append(entry); }
    return list;
  }

  function links(title, items) {
    if (!items.length) return [];
    const shown = items.slice(0, 40).map((item) => {
      const button = element("button", `${kindOf(item)} ${shortName(item)}`, "link");
      button.type = "button";
      button.addEventListener("click", () => choose(item));
      return button;
    });
    return [element("h4", items.length > 40 ? `${title} (40 of ${items.length})` : title), listOf(shown)];
  }

  function walk(key) {
    const item = chosen;
    if (item < 0 || key === "Home") return view.boxes[0].items[0];
    if (key === "End") return view.boxes[view.boxes.length - 1].items[0];
    const shown = (near) => near.find((other) => view.boxOf.has(other)) ?? item;
    const here = view.boxes[view.boxOf.get(item)];
    const outside = (items, near) => items.flatMap((each) => near[each]).filter((other) => !here.items.includes(other));
    if (key === "ArrowDown") return shown(outside(here.items, after));
    if (key === "ArrowUp") return shown(outside(here.items, before));
    const beside = view.boxes.filter((box) => box.rank === here.rank).sort((a, b) => a.lane - b.lane);
    const next = beside[beside.indexOf(here) + (key === "ArrowRight" ? 1 : -1)];
    return next ? next.items[0] : item;
  }

  function setZoom(factor) {
    const middle = (canvas.scrollTop + canvas.clientHeight / 2) / zoom;
    zoom = Math.min(2, Math.max(0.25, zoom * factor));
    resize();
    canvas.scrollTop = middle * zoom - canvas.clientHeight / 2;
  }

  function find(text) {
    const wanted = text.trim().toLowerCase();
    hits = new Set();
    rows.forEach((row, i) => {
      const found = !wanted || `${linkOf(i).title} ${row.cells[2].textContent}`.toLowerCase().includes(wanted);
      row.hidden = !found;
      if (found && wanted && holds(flow, i)) hits.add(itemOf(i));
    });
    if (hits.size) reveal(hits.values().next().value);
    schedule();
  }

  function sortBy(column) {
    const heads = [...table.tHead.rows[0].cells];
    const up = heads[column].getAttribute("aria-sort") !== "ascending";
    for (const head of heads) head.removeAttribute("aria-sort");
    heads[column].setAttribute("aria-sort", up ? "ascending" : "descending");
    const value = (row) => {
      const cell = row.cells[column], text = cell.textContent;
      const number = text === "exact" ? Infinity : Number(cell.dataset.v ?? text.replace(/ dB$/, ""));
      return text === "" ? null : Number.isNaN(number) ? text : number;
    };
    const order = (a, b) => (typeof a === "number" && typeof b === "number" ? Math.sign(a - b) || 0 : String(a).localeCompare(String(b)));
    const compare = (a, b) => (a === null || b === null ? (a === null) - (b === null) : (up ? 1 : -1) * order(a, b));  // empty cells last
    const keyed = [...body.rows].map((row) => [value(row), row]);
    body.append(...keyed.sort((a, b) => compare(a[0], b[0])).map(([, row]) => row));
  }

  function worstLayer() {
    let worst = -1;
    data.layers.forEach((own, i) => {
      if (own.v !== data.unmeasured && (worst < 0 || badness(own) > badness(data.layers[worst]))) worst = i;
    });
    return worst;
  }

  const badness = (own) => own.v * 1000 - (own.q ?? 999);

  table.tHead.addEventListener("click", (event) => {
    const cell = event.target.closest("th");
    if (cell) sortBy(cell.cellIndex);
  });
  const toTable = (row) => Number(row.id.slice(6));
  if (!canvas) return;

  body.addEventListener("click", (event) => {
    const row = event.target.closest("tr");
    if (row) chooseLayer(toTable(row), { table: false });
    if (event.target.closest("a")) { event.preventDefault(); byId("graph").scrollIntoView(); }
  });
  canvas.addEventListener("scroll", schedule, { passive: true });
  canvas.addEventListener("click", (event) => {
    const group = event.target.closest(".box");
    if (group) choose(leading(view.boxes[group.dataset.box].items), { scroll: false });
  });
  canvas.addEventListener("keydown", (event) => {
    if (event.key === "+" || event.key === "-") setZoom(event.key === "+" ? 1.25 : 0.8);
    else if (["ArrowDown", "ArrowUp", "ArrowLeft", "ArrowRight", "Home", "End"].includes(event.key)) choose(walk(event.key));
    else return;
    event.preventDefault();
  });
  byId("simplify").addEventListener("change", (event) => {
    setView(event.target.checked ? 1 : 0);
    if (chosen >= 0) reveal(chosen);
  });
  byId("larger").addEventListener("click", () => setZoom(1.25));
  byId("smaller").addEventListener("click", () => setZoom(0.8));
  byId("find").addEventListener("input", (event) => find(event.target.value));
  const worst = worstLayer(), button = byId("worst");
  if (worst < 0) button.remove();
  else button.addEventListener("click", () => chooseLayer(worst));
  for (const dot of document.querySelectorAll("circle[data-layer]")) {
    dot.addEventListener("click", () => { chooseLayer(Number(dot.dataset.layer)); byId("graph").scrollIntoView(); });
  }
  new ResizeObserver(schedule).observe(canvas);

  const sections = [...document.querySelectorAll("main section")];
  const entries = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
  const inView = new Set();
  const watcher = new IntersectionObserver((changes) => {
    for (const { target, isIntersecting } of changes) inView[isIntersecting ? "add" : "delete"](target);
    const current = sections.find((section) => inView.has(section));
    entries.forEach((link, id) => link.classList.toggle("here", id === current?.id));
  }, { rootMargin: "-10% 0px -80% 0px" });
  sections.forEach((section) => watcher.observe(section));

  byId("flow")?.addEventListener("change", (event) => setFlow(Number(event.target.value)));
  setFlow(0);
  const linked = location.hash.match(/^#layer-(\d+)$/);
  if (linked && Number(linked[1]) < rows.length) {
    chooseLayer(Number(linked[1]));
    addEventListener("load", () => byId("graph").scrollIntoView());
  }
})();
