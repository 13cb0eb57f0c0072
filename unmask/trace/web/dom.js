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

const CODE = /`([^`]+)`/g;

/** A text as children of an element: words in backticks become code. */
export function prose(text) {
  return text.split(CODE).map((part, index) => (index % 2 ? make("code", {}, part) : part));
}

/** A text without the backticks around words, for a tooltip. */
export const unquoted = (text) => text.replace(CODE, "$1");

/** An SVG element with attributes. */
export function draw(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** The element with an id. */
export const byId = (id) => document.getElementById(id);

/** The sign of an end of text. */
export const END = "⊣";

/** A token as a reader can see it: line ends shown and kept, an end of text as its sign. */
export function visible(text) {
  return text === "" ? END : text.replace(/\n/g, "↵\n").replace(/\t/g, "⇥");
}

/** A token in quotes on one line: its line ends become signs. */
export function quoted(text) {
  return text === "" ? `end of text ${END}` : `“${text.replace(/\n/g, "↵").replace(/\t/g, "⇥")}”`;
}

/** A number with that many digits, or a dash. */
export const number = (value, digits) => (typeof value === "number" ? value.toFixed(digits) : "–");

/** Whether the user prefers pages without motion. */
export const still = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

/** "1 step", "2 steps". */
export const plural = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;

/** A function that acts when the next frame is drawn, however often it is called before. */
export function oncePerFrame(act) {
  let due = false;
  return () => {
    if (due) return;
    due = true;
    requestAnimationFrame(() => {
      due = false;
      act();
    });
  };
}
