// A chart of areas on one another: how the time of a step divides into parts.

import { Chart } from "./chart.js";
import { el } from "./dom.js";
import { duration, percent } from "./format.js";
import { durationTickText } from "./scale.js";
import { PARTS } from "./usage.js";

export class StackChart extends Chart {
  constructor(rows) {
    const lines = PARTS.map(({ key, name, color }) => ({
      name, color, part: key, key: `top_${key}`, exact: true, rows,
      low: (row) => row[`low_${key}`], high: (row) => row[`top_${key}`],
    }));
    super({ title: "Parts of a step", unit: "mean of all ranks", lines, text: duration, tick: durationTickText });
  }

  // The areas begin at 0, and their heights are to be compared: neither has a meaning on a logarithmic scale.
  get log() {
    return false;
  }

  yRange(prepared, domain) {
    const range = super.yRange(prepared, domain);
    return range && [0, range[1]];
  }

  bandAlpha() {
    return 1;
  }

  // A thin edge in the colour of the card keeps neighbours apart for eyes that see their colours alike.
  drawLine(f, p) {
    const { c } = f;
    c.strokeStyle = this.group.color("--card");
    c.lineWidth = 1;
    this.strokeValues(f, p, p.values);
  }

  valueText({ line, rows }, i) {
    const row = rows[i], all = row[`top_${PARTS.at(-1).key}`];
    return `${line.name} ${duration(row[line.part])}${all > 0 ? ` (${percent(row[line.part] / all)})` : ""}`;
  }

  swatch(line) {
    return el("span", { class: `key ${line.color.slice(2)}`, "aria-hidden": "true" });
  }
}
