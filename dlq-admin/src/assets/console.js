// Live updates. Every page works without this.
"use strict";

for (const part of document.querySelectorAll("[data-events]")) {
  const state = part.querySelector("[data-state]");
  const said = part.dataset.shown;
  let source = null;

  const value = (news, path) => {
    let found = news;
    for (const name of path.split(".")) {
      found = found === null || found === undefined ? undefined : found[name];
    }
    return found === undefined || found === null ? 0 : found;
  };

  const show = (event) => {
    const news = JSON.parse(event.data);
    for (const field of part.querySelectorAll("[data-live]")) {
      const found = String(value(news, field.dataset.live));
      if (field instanceof HTMLProgressElement) {
        field.max = Math.max(1, Number(value(news, "operation.progress.total")));
        field.value = Number(found);
      } else if (field.textContent !== found) {
        field.textContent = found;
      }
    }
    state.textContent = "";
    // Another state has other buttons. What somebody is typing is not taken away.
    const typing = document.activeElement instanceof HTMLInputElement;
    const running = news.operation || news.replay;
    if (said && running && running.state !== said) {
      if (typing) {
        state.textContent = "It is " + running.state + " now; load the page again.";
      } else {
        location.reload();
      }
    }
  };

  const listen = () => {
    source = new EventSource(part.dataset.events);
    source.addEventListener("news", show);
    source.addEventListener("end", (event) => {
      source.close();
      show(event);
    });
    source.addEventListener("trouble", () => {
      state.textContent = "The store does not answer; the figures may be out of date.";
    });
    source.addEventListener("error", () => {
      state.textContent = "Not connected; the figures may be out of date.";
    });
  };

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
      source.close();
    } else if (source.readyState === EventSource.CLOSED) {
      listen();
    }
  });
  listen();
}
