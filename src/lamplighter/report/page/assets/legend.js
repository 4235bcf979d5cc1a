// Which methods are shown: a box to tick for each, beside a sample of its line.

const POINTS = {
  circle: "M12.8,7a4.2,4.2 0 1,0 8.4,0a4.2,4.2 0 1,0 -8.4,0Z",
  square: "M13,3h8v8h-8Z",
  "triangle-up": "M17,2l5,9h-10Z",
  "triangle-down": "M17,12l5,-9h-10Z",
  cross: "M15.4,2.5h3.2v3h3v3.2h-3v3h-3.2v-3h-3v-3.2h3Z",
  diamond: "M17,1.8l5.2,5.2l-5.2,5.2l-5.2,-5.2Z",
  x: "M13,4.4l1.6,-1.6l2.4,2.4l2.4,-2.4l1.6,1.6l-2.4,2.6l2.4,2.6l-1.6,1.6l-2.4,-2.4l-2.4,2.4l-1.6,-1.6l2.4,-2.6Z",
  star: "M17,1.5l1.5,3.7l4,.3l-3,2.6l1,3.9l-3.5,-2.1l-3.5,2.1l1,-3.9l-3,-2.6l4,-.3Z",
  hexagon: "M14.5,2.6h5l2.5,4.4l-2.5,4.4h-5l-2.5,-4.4Z",
  hourglass: "M13,2.5h8l-8,9h8Z",
  bowtie: "M12.5,3v8l9,-8v8Z",
  pentagon: "M17,2l5,3.7l-1.9,6h-6.2l-1.9,-6Z",
};
const SAMPLES = { solid: "", dash: "7 4", dashdot: "7 3 2 3", dot: "2 3" };

// A class of its own keeps the colour with the theme.
function swatch(method) {
  const { symbol, dash } = LOOKS[method];
  const dashes = SAMPLES[dash] ?? dash.replace(/px/g, "").replace(/,/g, " ");
  const line = drawn("path", { d: "M0,7H34", stroke: "currentColor", "stroke-width": "2", "stroke-dasharray": dashes, fill: "none" });
  const point = drawn("path", { d: POINTS[symbol], fill: "currentColor", stroke: "var(--ground)", "stroke-width": "0.8" });
  const made = drawn("svg", { class: "swatch", viewBox: "0 0 34 14", "aria-hidden": "true" }, line, point);
  made.dataset.method = method;
  made.style.color = colour(method);
  return made;
}

function recolour() {
  for (const each of document.querySelectorAll(".swatch")) each.style.color = colour(each.dataset.method);
}

function box(text, checked, changed, sample) {
  const input = make("input", { type: "checkbox" });
  input.checked = checked;
  input.addEventListener("change", () => changed(input.checked));
  return make("label", {}, input, ...(sample ? [sample] : []), make("span", {}, text));
}

function addLegend(group) {
  const place = group.element.querySelector(".legend");
  const boxes = group.numbers.methods.map(({ name }) => {
    const change = (on) => {
      group.hidden[on ? "delete" : "add"](name);
      group.redraw();
    };
    return box(name, true, change, swatch(name));
  });
  place.append(make("fieldset", {}, make("legend", {}, "Methods shown in the charts"), ...boxes));
}

function addOptions(group) {
  const add = (place, name, text) => {
    const change = (on) => {
      group.options[name] = on;
      group.redraw();
    };
    place.append(box(text, group.options[name], change));
  };
  const beside = group.element.querySelector(".chart-tradeoff .options");
  if (beside && group.options.paper !== undefined) add(beside, "paper", "The paper's values (hollow, thin)");
  if (beside && group.options.oneshot !== undefined) add(beside, "oneshot", "One-shot pruning (hollow, thin)");
  add(group.element.querySelector(".chart-survival .options"), "linear", "Linear scale");
}
