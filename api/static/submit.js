// The form that submits a job: checks itself while it is filled, keeps its state in the address, numbers the lines of an
// expression.

const WAIT_MS = 350;
const LONGEST_ADDRESS = 3000;
const form = document.getElementById("job-form");
const choose = document.getElementById("choose");
const text = document.getElementById("text");
const gutter = document.getElementById("gutter");
const status = document.getElementById("checking");

document.querySelector("button.check").hidden = true; // every change is checked
if (choose) {
  choose.querySelector("button").hidden = true;
  choose.querySelector("select").addEventListener("change", () => choose.requestSubmit());
}

/** What the address keeps: the operator, its parameters, and what is not as usual. */
const keepInAddress = () => {
  const kept = new URLSearchParams();
  for (const [name, value] of new FormData(form)) {
    const field = form.elements[name];
    if (name === "key" || (field.dataset?.default ?? null) === value) continue;
    if (value !== "") kept.append(name, value);
  }
  const query = kept.toString();
  history.replaceState(null, "", query.length <= LONGEST_ADDRESS ? `/submit?${query}` : "/submit?operator=te");
};

const mark = (name, message) => {
  for (const field of form.querySelectorAll("[aria-invalid]")) field.removeAttribute("aria-invalid");
  const field = name && form.elements[name];
  if (field instanceof Element) field.setAttribute("aria-invalid", "true");
  number(Number(/^line (\d+):/.exec(message)?.[1] ?? 0));
};

/** Numbers the lines of the expression; `wrong` is the line that cannot be read. */
const number = (wrong = 0) => {
  if (!text) return;
  gutter.replaceChildren(...text.value.split("\n").map((_, i) => {
    const line = document.createElement("span");
    line.textContent = `${i + 1}\n`;
    if (i + 1 === wrong) line.className = "wrong";
    return line;
  }));
  gutter.scrollTop = text.scrollTop;
};

let timer = null, asked = 0;
const check = async () => {
  const mine = ++asked;
  status.textContent = "checking …";
  try {
    const answer = await fetch("/submit/check", { method: "POST", body: new URLSearchParams(new FormData(form)), headers: { Accept: "text/html" } });
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    const html = await answer.text();
    if (mine !== asked) return; // a newer question is under way
    const fresh = new DOMParser().parseFromString(html, "text/html").getElementById("estimate");
    document.getElementById("estimate").replaceWith(fresh);
    mark(fresh.dataset.field, fresh.querySelector("[role=alert]")?.lastChild.textContent.trim() ?? "");
    status.textContent = fresh.dataset.field || fresh.querySelector("[role=alert]") ? "" : "checked";
  } catch (error) {
    if (mine === asked) status.textContent = `could not be checked (${error.message})`;
  }
};

form.addEventListener("input", () => {
  number();
  clearTimeout(timer);
  timer = setTimeout(() => {
    keepInAddress();
    check();
  }, WAIT_MS);
});
text?.addEventListener("scroll", () => { gutter.scrollTop = text.scrollTop; });
new ResizeObserver(() => { if (text) gutter.style.height = `${text.offsetHeight}px`; }).observe(text ?? form);
mark(document.getElementById("estimate").dataset.field, document.querySelector("#estimate [role=alert]")?.lastChild.textContent.trim() ?? "");
form.dataset.ready = "yes";
