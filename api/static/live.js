// Parts of a page that renew themselves, by events or every few seconds: not while nobody sees the page, and not with
// the text that they have. Both would make garbage, hour by hour.
"use strict";
{
  const texts = new Map(); // id -> the text that the part was last made of
  const renews = (element) => /^(every|refresh)/.test(element?.dataset.hxTrigger ?? "");

  document.addEventListener("htmx:before:request", (event) => {
    if (document.hidden && renews(event.detail.ctx.sourceElement)) event.preventDefault();
  });

  document.addEventListener("htmx:after:request", (event) => {
    const { sourceElement, text } = event.detail.ctx;
    if (!renews(sourceElement)) return;
    if (texts.get(sourceElement.id) === text) event.preventDefault();
    texts.set(sourceElement.id, text);
  });
}
