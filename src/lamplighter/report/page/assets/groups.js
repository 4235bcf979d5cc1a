// A group of runs: its state, its slider, and what is drawn anew when they change.

const CHARTS = { tradeoff: curves, survival, counts, budgets };
const TABLES = { round: roundTable, all: everyTable, layers: layersTable, runs: runsTable };
const MOVING = ["round", "layers"]; // the tables that follow the slider

class Group {
  constructor(element) {
    this.element = element;
    this.index = Number(element.dataset.group);
    this.numbers = embedded(`numbers-${this.index}`);
    this.hidden = new Set();
    this.drawn = new Set();
    this.seen = new Set(); // the figures in view; others are drawn anew when they come into it
    this.stale = new Set();
    this.place = this.numbers.rounds.length - 1;
    this.options = { linear: this.numbers.linear };
    if (this.numbers.methods.some((method) => method.paper)) this.options.paper = false;
    if (this.numbers.oneshot !== null) this.options.oneshot = false;
    this.waiting = false;
  }

  // Read when they are first looked at: there may be very many.
  get layers() {
    this.read ??= embedded(`layers-${this.index}`);
    return this.read;
  }

  get other() {
    this.readOther ??= embedded(`numbers-${this.numbers.oneshot}`);
    return this.readOther;
  }

  isShown(method) {
    return !this.hidden.has(method);
  }

  start() {
    if (this.numbers.rounds.length) {
      addLegend(this);
      addOptions(this);
      this.startSlider();
    }
    for (const place of this.element.querySelectorAll("details[data-table]")) {
      place.addEventListener("toggle", () => place.open && this.tabulate(place));
    }
    const first = this.element.querySelector("div[data-table]");
    if (first) this.tabulate(first);
  }

  startSlider() {
    this.slider = this.element.querySelector("input[type=range]");
    this.slider.max = this.numbers.rounds.length - 1;
    this.moveTo(this.place);
    this.slider.addEventListener("input", () => this.moveTo(Number(this.slider.value)));
  }

  moveTo(place) {
    const { rounds, heads, kept } = this.numbers;
    const [left, total] = kept[place].map(counted);
    this.place = place;
    this.slider.value = place;
    this.slider.setAttribute("aria-valuetext", `round ${rounds[place]}, ${heads[place]} % of the weights left`);
    this.element.querySelector("output").textContent = `${rounds[place]}: ${heads[place]} % left`;
    this.element.querySelector(".now").textContent = `after round ${rounds[place]}: ${left} of ${total} weights left`;
    this.redraw();
  }

  // At most once for each picture on the screen, however fast the slider moves.
  redraw() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      for (const figure of this.drawn) {
        if (this.seen.has(figure)) this.draw(figure);
        else this.stale.add(figure);
      }
      for (const place of this.element.querySelectorAll("[data-table]")) {
        if (MOVING.includes(place.dataset.table) && place.dataset.made) this.tabulate(place, true);
      }
    });
  }

  draw(figure, width = null) {
    const first = !this.drawn.has(figure);
    this.drawn.add(figure);
    this.stale.delete(figure);
    const plot = plotInto(figure, (narrow) => CHARTS[figure.dataset.chart](this, narrow), width);
    if (first && figure.dataset.chart === "tradeoff") plot.on("plotly_click", (event) => this.choose(event.points[0].x));
  }

  // The round nearest to where the chart was clicked.
  choose(left) {
    const away = this.numbers.left.map((each) => Math.abs(Math.log(each / left)));
    this.moveTo(away.indexOf(Math.min(...away)));
  }

  // The table in its place; a new one keeps the order that the reader gave the old.
  tabulate(place, again = false) {
    if (place.dataset.made && !again) return;
    const old = place.querySelector("th[aria-sort]");
    const made = TABLES[place.dataset.table](this);
    place.querySelector(".scroll")?.remove();
    place.append(made);
    place.dataset.made = "yes";
    if (old) restore(made.querySelector("table"), old.cellIndex, old.getAttribute("aria-sort"));
  }
}

function restore(table, column, order) {
  const head = table.tHead.rows[0].cells[column];
  for (let tries = 0; head && tries < 2 && head.getAttribute("aria-sort") !== order; tries += 1) sortBy(table, head);
}
