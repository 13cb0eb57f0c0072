// Elements from plain values. Text goes in as text: nothing here or elsewhere parses HTML.

const SVG = "http://www.w3.org/2000/svg";

/** An element with properties, attributes (names with a dash, role) and children; null children are left out. */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.includes("-") || name === "role") element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

/** An SVG element with attributes. */
export function draw(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** The element with an id. */
export const byId = (id) => document.getElementById(id);

/** A token as a reader can see it: line ends shown and kept, tokens without text as an end mark. */
export function visible(text) {
  return text === "" ? "∎" : text.replace(/\n/g, "↵\n").replace(/\t/g, "⇥");
}

/** A token in quotes on one line: its line ends become signs. */
export function quoted(text) {
  return text === "" ? "end ∎" : `“${text.replace(/\n/g, "↵").replace(/\t/g, "⇥")}”`;
}

/** A number with that many digits, or a dash. */
export const number = (value, digits) => (typeof value === "number" ? value.toFixed(digits) : "–");

/** "1 step", "2 steps". */
export const plural = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;
