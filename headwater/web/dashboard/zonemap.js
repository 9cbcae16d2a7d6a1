// The map: zones as cards from the sources of data (left) to the centre (right), links as streams between them.
// Data arrives in increments (`apply`); only changed and visible elements are drawn.
const NS = "http://www.w3.org/2000/svg";
const CARD = 196, GAP_X = 118, GAP_Y = 14, HEAD = 34, ROW = 19, SHOWN = 6, MANY = 80, FEW = 3, NARROW = 640;
// A column higher than TALL is broken into blocks, so that the map is about SHAPE times as wide as high.
const TALL = 2400, SHAPE = 1.6;

function el(name, attrs, text) {
  const found = document.createElementNS(NS, name);
  for (const key in attrs) found.setAttribute(key, attrs[key]);
  if (text !== undefined) found.textContent = text;
  return found;
}
const cut = (text, most) => (text.length > most ? text.slice(0, most - 1) + "…" : text);

export default {
  template: `
    <div class="hw-map" :class="{'hw-map-narrow': narrow}">
      <svg ref="svg" role="tree" :aria-label="label" tabindex="-1" @wheel="wheel" @pointerdown="down">
        <g ref="view"><g ref="names" aria-hidden="true"></g><g ref="links"></g><g ref="cards"></g></g>
      </svg>
      <div class="hw-map-tools" v-show="!narrow">
        <button type="button" aria-label="Zoom in" @click="zoomBy(1.25)">+</button>
        <button type="button" aria-label="Zoom out" @click="zoomBy(0.8)">−</button>
        <button type="button" aria-label="Show all" @click="fit(true)">⤢</button>
      </div>
      <p class="hw-sr" role="status" aria-live="polite">{{ told }}</p>
    </div>`,
  props: { label: { type: String, default: "Zones" } },
  data: () => ({ told: "", narrow: false }),
  mounted() {
    // Keep the drawing's data out of Vue's reactivity: it would watch every figure of every zone.
    Object.assign(this, {
      zones: new Map(), streams: new Map(), crossing: new Map(), layers: [], order: [], nodes: [], byId: new Map(), drawn: new Map(),
      paths: new Map(), toggled: new Map(), at: { x: 0, y: 0, k: 1 }, focusId: null, chosen: null, touched: false,
      fresh: new Map(), first: true, queued: false,
    });
    this.watcher = new ResizeObserver(() => this.resized());
    this.watcher.observe(this.$el);
    this.$refs.svg.addEventListener("keydown", (event) => this.key(event));
    this.$refs.svg.addEventListener("focusin", (event) => {
      const id = event.target.dataset && event.target.dataset.id;
      if (id && id !== this.focusId) this.rove(id);
    });
    this.resized();
    this.$emit("ready");
  },
  unmounted() { this.watcher.disconnect(); },
  methods: {
    // ------------------------------------------------------------ data
    apply(piece) {
      const begun = performance.now();
      if (piece.whole) { this.zones.clear(); this.streams.clear(); this.crossing.clear(); }
      if (piece.layers) this.layers = piece.layers;
      let shape = !!piece.whole;
      const news = [];
      for (const zone of piece.zones) {
        const before = this.zones.get(zone.id);
        if (!before || before.parent !== zone.parent || before.layer !== zone.layer) shape = true;
        if (!before || this.rows(before) !== this.rows(zone)) shape = true;
        if (before && !this.first) {
          const known = new Set(before.units.map((u) => u.d + "/" + u.id));
          for (const unit of zone.units) {
            if (!known.has(unit.d + "/" + unit.id)) { this.fresh.set(unit.d + "/" + unit.id, begun); news.push(unit.id); }
          }
        }
        zone.version = (before ? before.version : 0) + 1;
        this.zones.set(zone.id, zone);
      }
      if (piece.order) {
        const there = new Set(piece.order);
        for (const id of [...this.zones.keys()]) if (!there.has(id)) { this.zones.delete(id); this.streams.delete(id); }
      }
      for (const link of piece.links) {
        const known = link.cross ? this.crossing : this.streams, key = link.cross ? link.id : link.lower;
        link.version = ((known.get(key) || {}).version || 0) + 1;
        known.set(key, link);
      }
      if (piece.order) { this.order = piece.order; shape = true; }
      if (shape) this.layout(); else this.renew();
      if (this.first && this.zones.size) { this.fit(false); this.first = false; }
      this.paint();
      if (news.length) this.told = news.length > 3 ? `${news.length} units are new` : `New: ${news.join(", ")}`;
      this.$el.dataset.zones = this.zones.size;
      this.$el.dataset.ms = (performance.now() - begun).toFixed(1);
      this.$el.dataset.updates = 1 + Number(this.$el.dataset.updates || 0);
    },
    renew() {
      for (const node of this.nodes) {
        node.zone = this.zones.get(node.zone.id);
        if (node.inside) node.inside = node.inside.map((zone) => this.zones.get(zone.id));
      }
    },
    choose(id) { this.chosen = id; this.repaint(); },
    focusBack() { if (this.focusId) this.go(this.focusId); },
    rows(zone) { return Math.min(zone.units.length, SHOWN) + (zone.count > Math.min(zone.units.length, SHOWN) ? 0.5 : 0); },
    height(zone) { return HEAD + Math.ceil(this.rows(zone)) * ROW + (zone.count ? 8 : 2); },

    // ------------------------------------------------------------ where everything is
    layout() {
      const below = new Map();
      const roots = [];
      for (const id of this.order) {
        const zone = this.zones.get(id);
        if (!zone) continue;
        if (zone.parent && this.zones.has(zone.parent)) {
          if (!below.has(zone.parent)) below.set(zone.parent, []);
          below.get(zone.parent).push(id);
        } else roots.push(id);
      }
      const many = this.zones.size > MANY;
      const tree = (id, depth) => {
        const zone = this.zones.get(id);
        const children = below.get(id) || [];
        const leaves = children.filter((c) => !below.has(c));
        const groups = many && leaves.length > FEW;
        const open = this.toggled.has(id) ? this.toggled.get(id) : !groups;
        const node = { id, kind: "zone", zone, depth, height: this.height(zone), parent: null, children: [] };
        const shown = open ? children : children.filter((c) => below.has(c));
        node.children = shown.map((c) => tree(c, depth + 1));
        if (groups) node.grouping = true;
        if (!open) {
          const inside = leaves.map((c) => this.zones.get(c));
          node.children.unshift({ id: `+${id}`, kind: "group", of: id, inside, zone: inside[0], depth: depth + 1, height: 62, children: [] });
        } else if (groups) node.open = true;
        for (const child of node.children) child.parent = node;
        return node;
      };
      const tops = roots.map((id) => tree(id, 0));
      this.nodes = [];
      const walk = (node) => { this.nodes.push(node); node.children.forEach(walk); };
      tops.forEach(walk);
      this.byId = new Map(this.nodes.map((n) => [n.id, n]));
      if (this.narrow) this.stacked(); else this.basin(tops);
      if (!this.focusId || !this.exists(this.focusId)) this.focusId = this.nodes.length ? this.nodes[0].id : null;
      for (const id of [...this.drawn.keys()]) if (!this.byId.has(id)) this.erase(id);
    },
    stacked() {
      let y = 8;
      const wide = Math.max(220, this.$el.clientWidth - 8);
      for (const node of this.nodes) {
        node.x = 4 + Math.min(node.depth, 6) * 18;
        node.w = wide - node.x;
        node.y = y;
        y += node.height + 10;
      }
      this.size = { w: wide, h: y };
      this.at = { x: 0, y: 0, k: 1 };
      this.$refs.svg.style.height = `${y + 8}px`;
      this.$refs.names.replaceChildren();
    },
    basin(tops) {
      this.$refs.svg.style.height = "";
      const column = (node) => {
        const at = this.layers.indexOf(node.zone.layer);
        return at < 0 ? 0 : at;
      };
      const span = (node) => {
        const inner = node.children.reduce((sum, c) => sum + span(c) + GAP_Y, -GAP_Y);
        return (node.span = Math.max(node.height, node.children.length ? inner : 0));
      };
      const step = CARD + GAP_X;
      const place = (node, top, left) => {
        node.x = left + column(node) * step;
        node.w = CARD;
        const inner = node.children.reduce((sum, c) => sum + c.span + GAP_Y, -GAP_Y);
        let at = top + (node.span - (node.children.length ? inner : 0)) / 2;
        for (const child of node.children) { place(child, at, left); at += child.span + GAP_Y; }
        node.y = top + (node.span - node.height) / 2;
      };
      // Very many children stand in blocks side by side, and their parent stands beside the last block.
      const blocks = (node, top) => {
        const wide = column(node) * step, count = Math.round(Math.sqrt((SHAPE * node.span) / wide));
        const high = (node.span + GAP_Y) / count + GAP_Y;
        let block = 0, at = top, lowest = top;
        for (const child of node.children) {
          if (at > top && at + child.span - top > high && block + 1 < count) { block += 1; at = top; }
          place(child, at, block * wide);
          at += child.span + GAP_Y;
          lowest = Math.max(lowest, at);
        }
        Object.assign(node, { w: CARD, x: (block + 1) * wide, span: lowest - GAP_Y - top });
        node.y = top + (node.span - node.height) / 2;
        return block + 1;
      };
      let y = 0, most = 1;
      for (const top of tops) {
        span(top);
        if (top.span > TALL && top.children.length > 1 && column(top)) most = Math.max(most, blocks(top, y));
        else place(top, y, 0);
        y += top.span + GAP_Y * 2;
      }
      const last = Math.max(1, this.layers.length) - 1;
      this.size = { w: most * last * step + CARD, h: Math.max(1, y - GAP_Y * 2) };
      const heads = [];
      for (let n = 0; n <= most * last; n += 1) heads.push([n === most * last ? last : n % last, n * step + 2]);
      this.$refs.names.replaceChildren(
        ...heads.map(([layer, x]) => el("text", { class: "hw-layer", x, y: -14 }, this.layers[layer] || "")),
      );
    },
    resized() {
      const narrow = this.$el.clientWidth < NARROW;
      const changed = narrow !== this.narrow;
      this.narrow = narrow;
      if (this.zones && this.zones.size) {
        if (changed || narrow) { this.layout(); this.erase(); }
        if (!this.touched || changed) this.fit(false);
        this.paint();
      }
    },
    fit(all) {
      if (this.narrow || !this.size) { this.move(); return; }
      const w = this.$el.clientWidth, h = this.$refs.svg.clientHeight || 400, pad = 28;
      const whole = Math.min((w - 2 * pad) / this.size.w, (h - 2 * pad - 20) / this.size.h);
      const k = all ? Math.max(0.04, Math.min(1.25, whole)) : Math.max(0.62, Math.min(1.25, whole));
      const x = this.size.w * k <= w - 2 * pad ? (w - this.size.w * k) / 2 : w - pad - this.size.w * k;
      this.at = { k, x, y: (h - this.size.h * k) / 2 + 10 };
      this.touched = this.touched && !all;
      this.move();
    },
    // ------------------------------------------------------------ drawing
    move() {
      if (this.queued) return;
      this.queued = true;
      requestAnimationFrame(() => { this.queued = false; this.paint(); });
    },
    repaint() { for (const own of this.drawn.values()) own.sign = ""; this.paint(); },
    paint() {
      const { x, y, k } = this.at;
      this.$refs.view.setAttribute("transform", `translate(${x},${y}) scale(${k})`);
      this.$refs.svg.classList.toggle("hw-far", k < 0.5);
      const w = this.$el.clientWidth, h = this.$refs.svg.clientHeight;
      const seen = this.narrow
        ? () => true
        : (n) => n.x * k + x < w + 80 && (n.x + n.w) * k + x > -80 && n.y * k + y < h + 80 && (n.y + n.height) * k + y > -80;
      for (const node of this.nodes) {
        if (seen(node) || this.holdsFocus(node)) this.draw(node);
        else if (this.drawn.has(node.id)) this.erase(node.id);
        this.stream(node, seen);
      }
      for (const link of this.crossing.values()) this.cross(link, seen);
      for (const [id, path] of this.paths) if (!this.byId.has(id) && !path.cross) { path.g.remove(); this.paths.delete(id); }
    },
    holdsFocus(node) {
      const active = document.activeElement;
      const own = active && active.dataset && active.dataset.zone;
      return own === node.id;
    },
    erase(id) {
      if (id === undefined) { for (const one of [...this.drawn.keys()]) this.erase(one); return; }
      const own = this.drawn.get(id);
      if (own) { own.g.remove(); this.drawn.delete(id); }
    },
    draw(node) {
      let own = this.drawn.get(node.id);
      const place = `translate(${node.x},${node.y})`;
      if (!own) {
        own = { g: el("g", { class: "hw-zone" }), sign: "", place: "" };
        this.$refs.cards.appendChild(own.g);
        this.drawn.set(node.id, own);
      }
      if (own.place !== place) { own.g.setAttribute("transform", place); own.place = place; }
      const sign = node.kind === "group"
        ? `${node.w}|${node.inside.map((z) => z.version).join()}|${this.focusId === node.id}`
        : `${node.w}|${node.zone.version}|${this.chosen}|${this.focused(node)}|${node.open}|${node.grouping}`;
      if (own.sign === sign) return;
      own.sign = sign;
      const held = own.g.contains(document.activeElement) ? document.activeElement.dataset.id : null;
      own.g.replaceChildren(...(node.kind === "group" ? this.group(node) : this.card(node)));
      if (held) { const again = own.g.querySelector(`[data-id="${CSS.escape(held)}"]`); if (again) again.focus({ preventScroll: true }); }
    },
    focused(node) { return this.focusId && (this.focusId === node.id || this.focusId.startsWith(`${node.id}\n`)) ? this.focusId : ""; },
    item(attrs, id, zone, level) {
      return el("g", { role: "treeitem", "aria-level": level, tabindex: this.focusId === id ? 0 : -1, "data-id": id, "data-zone": zone, ...attrs });
    },
    card(node) {
      const zone = node.zone, w = node.w;
      const state = zone.error ? "bad" : zone.failed ? "bad" : zone.count ? "on" : "idle";
      const about = `Zone ${zone.id}, ${zone.layer}${zone.locations ? `, ${zone.locations}` : ""}: ${zone.count} unit${zone.count === 1 ? "" : "s"}` +
        `${zone.failed ? `, ${zone.failed} failed` : ""}${zone.rate ? `, ${zone.rate}` : ""}${zone.load === null ? "" : `, load ${Math.round(zone.load * 100)} %`}` +
        `${zone.error ? `, cannot be asked: ${zone.error}` : ""}`;
      const head = this.item({ class: `hw-card hw-${state}${this.chosen === zone.id ? " hw-chosen" : ""}`, "aria-label": about }, node.id, node.id, node.depth + 1);
      if (node.grouping) head.setAttribute("aria-expanded", node.open ? "true" : "false");
      head.append(el("rect", { class: "hw-box", width: w, height: node.height, rx: 6 }), el("rect", { class: "hw-mark", width: 3, height: node.height, rx: 1.5 }));
      head.append(el("text", { class: "hw-name", x: 12, y: 16 }, cut(zone.id, 16)));
      const side = zone.error ? "no answer" : zone.rate || zone.layer;
      head.append(el("text", { class: "hw-side", x: w - 10, y: 16, "text-anchor": "end" }, cut(side, 18)));
      const hosts = zone.hosts, gap = 3, wide = (w - 22 - gap * (hosts.length - 1)) / Math.max(1, hosts.length);
      hosts.forEach((host, n) => {
        const at = 12 + n * (wide + gap);
        head.append(el("rect", { class: "hw-host", x: at, y: 23, width: Math.max(1, wide), height: 3 }));
        if (host.load !== null) head.append(el("rect", { class: host.load > 0.85 ? "hw-load hw-full" : "hw-load", x: at, y: 23, width: Math.max(1, wide * Math.min(1, host.load)), height: 3 }));
      });
      head.append(el("title", {}, about));
      head.addEventListener("click", () => this.select("zone", zone.id));
      const parts = [head];
      zone.units.slice(0, SHOWN).forEach((unit, n) => parts.push(this.unit(node, unit, HEAD + n * ROW)));
      const more = zone.count - Math.min(zone.units.length, SHOWN);
      if (more > 0) {
        const text = el("text", { class: "hw-more", x: 24, y: HEAD + Math.min(zone.units.length, SHOWN) * ROW + 13 }, `and ${more} more`);
        text.addEventListener("click", () => this.select("zone", zone.id));
        parts.push(text);
      }
      if (node.open) {
        const fold = el("text", { class: "hw-fold", x: -8, y: node.height / 2 + 4, "text-anchor": "end" }, "⊟");
        fold.addEventListener("click", () => this.toggle(zone.id, false));
        parts.push(fold);
      }
      return parts;
    },
    unit(node, unit, y) {
      const id = `${node.id}\n${unit.d}/${unit.id}`;
      const name = unit.id.split("@")[0];
      const side = unit.s === "running" ? unit.r : unit.s;
      const about = `Unit ${unit.id} of ${unit.d}: ${unit.s}${unit.r ? `, ${unit.r}` : ""}${unit.lag ? `, ${unit.lag}` : ""}`;
      const same = this.chosen && this.chosen.startsWith(`${unit.d}/`);
      const g = this.item({ class: `hw-unit hw-is-${unit.s}`, transform: `translate(0,${y})`, "aria-label": about }, id, node.id, node.depth + 2);
      if (this.chosen === `${unit.d}/${unit.id}`) g.classList.add("hw-chosen");
      else if (same) g.classList.add("hw-same");
      const since = this.fresh.get(`${unit.d}/${unit.id}`);
      if (since && performance.now() - since < 6000) g.classList.add("hw-fresh");
      g.append(el("rect", { class: "hw-row", x: 6, width: node.w - 12, height: ROW - 1, rx: 4 }), el("circle", { class: "hw-dot", cx: 15, cy: 9, r: 3.5 }));
      g.append(el("text", { class: "hw-unit-name", x: 24, y: 13 }, cut(name, node.w > 230 ? 30 : 16)));
      g.append(el("text", { class: "hw-figure", x: node.w - 12, y: 13, "text-anchor": "end" }, unit.late ? unit.late : side));
      g.append(el("title", {}, `${unit.id} · ${unit.d}`));
      g.addEventListener("click", () => this.select("unit", unit.id, unit.d));
      return g;
    },
    group(node) {
      const units = node.inside.reduce((sum, z) => sum + z.count, 0), failed = node.inside.filter((z) => z.failed || z.error).length;
      const about = `${node.inside.length} zones below ${node.of}, ${units} units${failed ? `, ${failed} with trouble` : ""}; opens`;
      const head = this.item({ class: `hw-card hw-group hw-${failed ? "bad" : "on"}`, "aria-label": about, "aria-expanded": "false" }, node.id, node.id, node.depth + 1);
      head.append(el("rect", { class: "hw-box hw-behind", x: 4, y: 4, width: node.w, height: node.height, rx: 6 }), el("rect", { class: "hw-box", width: node.w, height: node.height, rx: 6 }));
      head.append(el("text", { class: "hw-name", x: 12, y: 17 }, `${node.inside.length} zones`));
      head.append(el("text", { class: "hw-side", x: node.w - 10, y: 17, "text-anchor": "end" }, `${units} units`));
      const each = Math.min(10, (node.w - 24) / node.inside.length);
      node.inside.slice(0, 80).forEach((zone, n) => {
        const load = zone.load === null ? 0.12 : Math.max(0.12, Math.min(1, zone.load));
        const bad = zone.error || zone.failed ? " hw-full" : "";
        head.append(el("rect", { class: `hw-load${bad}`, x: 12 + n * each, y: 52 - 24 * load, width: Math.max(1, each - 2), height: 24 * load }));
      });
      head.addEventListener("click", () => this.toggle(node.of, true));
      return [head];
    },
    path(id, zone) {
      let own = this.paths.get(id);
      if (!own) {
        own = { g: el("g", { class: "hw-link" }), sign: "" };
        own.bed = el("path", { class: "hw-bed" });
        own.flow = el("path", { class: "hw-flow" });
        own.text = el("text", { class: "hw-link-text" });
        own.title = el("title", {});
        own.g.append(own.bed, own.flow, own.text, own.title);
        if (zone) own.g.addEventListener("click", () => this.select("zone", zone));
        this.$refs.links.appendChild(own.g);
        this.paths.set(id, own);
      }
      return own;
    },
    unpath(id) {
      const own = this.paths.get(id);
      if (own) { own.g.remove(); this.paths.delete(id); }
    },
    // A link beside the tree: an arc in one layer, a curve to another. Its zones may be in a closed group, or gone.
    cross(link, seen) {
      const id = `link ${link.id}`, lower = this.byId.get(link.lower), upper = this.byId.get(link.upper);
      if (this.narrow || !lower || !upper || !(seen(lower) || seen(upper))) { this.unpath(id); return; }
      const own = this.path(id, link.lower);
      const sign = `${lower.x},${lower.y},${lower.height},${upper.x},${upper.y},${upper.height},${link.version}`;
      own.cross = true;
      if (own.sign === sign) return;
      own.sign = sign;
      const x1 = lower.x + lower.w, y1 = lower.y + lower.height / 2, y2 = upper.y + upper.height / 2;
      const level = Math.abs(upper.x - lower.x) < 1, x2 = level ? upper.x + upper.w : upper.x;
      const far = level ? x1 + GAP_X / 2 : (x1 + x2) / 2;
      this.fill(own, `M${x1},${y1} C${far},${y1} ${far},${y2} ${x2},${y2}`, link, far - 8, (y1 + y2) / 2);
      own.g.setAttribute("class", `hw-link hw-${link.state}`);
    },
    stream(node, seen) {
      const up = node.parent;
      if (!up || !(seen(node) || seen(up))) { this.unpath(node.id); return; }
      const own = this.path(node.id, node.kind === "zone" ? node.id : null);
      const link = node.kind === "zone" ? this.streams.get(node.id) : null;
      const sign = `${node.x},${node.y},${node.height},${up.x},${up.y},${up.height},${link && link.version},${this.narrow}`;
      if (own.sign === sign) return;
      own.sign = sign;
      let d, tx = 0, ty = 0;
      if (this.narrow) {
        const x = up.x + 8, y = node.y + 17;
        d = `M${node.x},${y} H${x + 4} Q${x},${y} ${x},${y - 4} V${up.y + up.height}`;
      } else {
        const x1 = node.x + node.w, y1 = node.y + node.height / 2, x2 = up.x;
        const spread = up.children.length > 1 ? (up.children.indexOf(node) / (up.children.length - 1) - 0.5) * Math.min(up.height * 0.6, up.children.length * 9) : 0;
        const y2 = up.y + up.height / 2 + spread, mid = (x1 + x2) / 2;
        d = `M${x1},${y1} C${mid},${y1} ${mid},${y2} ${x2},${y2}`;
        tx = x1 + 8; ty = y2 < y1 - 2 ? y1 + 15 : y1 - 8;
      }
      this.fill(own, d, link, tx, ty);
      own.g.setAttribute("class", `hw-link hw-${link ? link.state : "quiet"}`);
    },
    fill(own, d, link, tx, ty) {
      own.bed.setAttribute("d", d);
      own.flow.setAttribute("d", d);
      const bed = link ? link.bed : 3, flow = link ? link.flow : 0;
      own.bed.setAttribute("stroke-width", this.narrow ? Math.min(4, bed) : bed);
      own.flow.setAttribute("stroke-width", flow ? Math.max(1.4, this.narrow ? Math.min(4, flow) : flow) : 0);
      own.text.textContent = link && !this.narrow ? link.text : "";
      own.text.setAttribute("x", tx); own.text.setAttribute("y", ty);
      own.title.textContent = link ? link.about : "";
    },
    // ------------------------------------------------------------ pointer
    select(kind, id, deployment) {
      this.chosen = kind === "unit" ? `${deployment}/${id}` : id;
      this.repaint();
      this.$emit("select", { kind, id, deployment: deployment || null });
    },
    toggle(id, open) {
      this.toggled.set(id, open);
      const before = this.byId.get(id), y = before ? before.y : 0;
      this.focusId = id;
      this.layout();
      const now = this.byId.get(id);
      if (now && !this.narrow) this.at.y -= (now.y - y) * this.at.k;
      this.touched = true;
      this.repaint();
    },
    wheel(event) {
      if (this.narrow) return;
      event.preventDefault();
      const box = this.$refs.svg.getBoundingClientRect();
      this.zoomBy(Math.exp(-event.deltaY * 0.0015), event.clientX - box.left, event.clientY - box.top);
    },
    zoomBy(by, x, y) {
      const k = Math.max(0.04, Math.min(2.5, this.at.k * by));
      const cx = x === undefined ? this.$el.clientWidth / 2 : x, cy = y === undefined ? this.$refs.svg.clientHeight / 2 : y;
      this.at = { k, x: cx - ((cx - this.at.x) * k) / this.at.k, y: cy - ((cy - this.at.y) * k) / this.at.k };
      this.touched = true;
      this.move();
    },
    down(event) {
      if (this.narrow || event.button !== 0) return;
      const from = { x: event.clientX - this.at.x, y: event.clientY - this.at.y, px: event.clientX, py: event.clientY };
      let dragged = false;
      const drag = (e) => {
        if (!dragged && Math.hypot(e.clientX - from.px, e.clientY - from.py) < 4) return;
        dragged = true;
        this.touched = true;
        this.at = { ...this.at, x: e.clientX - from.x, y: e.clientY - from.y };
        this.move();
      };
      const up = () => {
        window.removeEventListener("pointermove", drag);
        window.removeEventListener("pointerup", up);
        // The end of a drag must not click the card under it.
        if (dragged) window.addEventListener("click", (e) => e.stopPropagation(), { capture: true, once: true });
      };
      window.addEventListener("pointermove", drag);
      window.addEventListener("pointerup", up);
    },
    // ------------------------------------------------------------ keyboard
    stops() {
      return this.nodes.flatMap((n) => [n.id, ...(n.kind === "zone" ? n.zone.units.slice(0, SHOWN).map((u) => `${n.id}\n${u.d}/${u.id}`) : [])]);
    },
    exists(id) { return this.stops().includes(id); },
    rove(id) {
      this.focusId = id;
      for (const g of this.$refs.cards.querySelectorAll("[data-id]")) g.setAttribute("tabindex", g.dataset.id === id ? 0 : -1);
    },
    go(id) {
      if (!id) return;
      const node = this.byId.get(id.split("\n")[0]);
      if (!node) return;
      this.rove(id);
      if (!this.narrow) {
        const w = this.$el.clientWidth, h = this.$refs.svg.clientHeight, { k } = this.at, pad = 40;
        const x = node.x * k + this.at.x, y = node.y * k + this.at.y;
        if (x < pad) this.at.x += pad - x; else if (x + node.w * k > w - pad) this.at.x -= x + node.w * k - w + pad;
        if (y < pad) this.at.y += pad - y; else if (y + node.height * k > h - pad) this.at.y -= y + node.height * k - h + pad;
        this.touched = true;
      }
      this.draw(node);
      this.paint();
      const g = this.$refs.cards.querySelector(`[data-id="${CSS.escape(id)}"]`);
      if (g) { g.focus({ preventScroll: true }); if (this.narrow) g.scrollIntoView({ block: "nearest" }); }
    },
    key(event) {
      const id = this.focusId, stops = this.stops(), at = stops.indexOf(id);
      if (at < 0) return;
      const node = this.byId.get(id.split("\n")[0]);
      const moves = {
        ArrowDown: () => this.go(stops[at + 1]),
        ArrowUp: () => this.go(stops[at - 1]),
        Home: () => this.go(stops[0]),
        End: () => this.go(stops[stops.length - 1]),
        // Left moves towards the sources, right towards the centre.
        ArrowLeft: () => (node.kind === "group" ? this.toggle(node.of, true) : this.go(node.children[0] && node.children[0].id)),
        ArrowRight: () => (id !== node.id ? this.go(node.id) : node.parent && this.go(node.parent.id)),
        Enter: () => this.open(id, node), " ": () => this.open(id, node),
        "+": () => this.zoomBy(1.25), "-": () => this.zoomBy(0.8), 0: () => this.fit(true),
      };
      if (!moves[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      moves[event.key]();
    },
    open(id, node) {
      if (node.kind === "group") { this.toggle(node.of, true); this.go(node.of); return; }
      if (id === node.id) { this.select("zone", id); return; }
      const unit = node.zone.units.find((u) => id === `${node.id}\n${u.d}/${u.id}`);
      if (unit) this.select("unit", unit.id, unit.d);
    },
  },
};
