// Mermaid is three megabytes: only pages with a drawing load it.
document.addEventListener("DOMContentLoaded", () => {
  const drawings = document.querySelectorAll(".highlight-mermaid pre");
  if (drawings.length === 0) return;
  const script = document.createElement("script");
  script.src = new URL("../mermaid.min.js", document.querySelector("script[src*='drawings.js']").src);
  script.onload = () => {
    mermaid.initialize({ startOnLoad: false });
    mermaid.run({ nodes: drawings });
  };
  document.head.append(script);
});
