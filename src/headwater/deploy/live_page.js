(() => {
  const content = document.getElementById("content"), live = document.getElementById("live");
  const mark = (text, stale) => { live.textContent = text; live.classList.toggle("stale", stale); };
  async function renew() {
    try {
      const reply = await fetch("content", { cache: "no-store" });
      if (!reply.ok) throw new Error(reply.status);
      const text = await reply.text();
      const folds = new Map([...content.querySelectorAll("details")].map(fold => [fold.id, fold.open]));
      const focus = document.activeElement?.closest("details")?.id;
      const scrolls = new Map([...content.querySelectorAll("details ol")].map(list => [list.parentNode.id, list.scrollTop]));
      content.innerHTML = text;
      for (const fold of content.querySelectorAll("details")) {
        if (folds.has(fold.id)) fold.open = folds.get(fold.id);
        const list = fold.querySelector("ol");
        if (list) list.scrollTop = scrolls.get(fold.id) ?? 0;
        if (fold.id === focus) fold.querySelector("summary").focus({ preventScroll: true });
      }
      mark("live", false);
    } catch {
      mark("no answer: the command that serves this page has ended", true);
    }
  }
  setInterval(() => { if (!document.hidden) renew(); }, 1000 * Number(content.dataset.seconds));
  document.addEventListener("visibilitychange", () => { if (!document.hidden) renew(); });
})();
