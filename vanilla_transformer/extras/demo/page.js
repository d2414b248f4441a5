// Where a word is pointed at, or reached by the keyboard, the words that it is aligned with are marked.
(() => {
  const mark = event => {
    document.querySelectorAll(".vt-linked").forEach(word => word.classList.remove("vt-linked"));
    const word = event.target.closest?.(".vt-word");
    const line = word?.closest(".vt-line");
    if (!line || event.type === "focusout" || event.type === "mouseout") return;
    const numbers = (word.dataset.from ?? word.dataset.source).split(" ");
    word.classList.add("vt-linked");
    line.querySelectorAll(".vt-word").forEach(other => {
      const there = word.dataset.from === undefined ? other.dataset.from?.split(" ") : [other.dataset.source];
      if (there?.some(number => numbers.includes(number))) other.classList.add("vt-linked");
    });
  };
  ["mouseover", "mouseout", "focusin", "focusout"].forEach(name => document.addEventListener(name, mark));
})();
