window.addEventListener("load", () => {
  // Wide tables and code scroll, also by keyboard. The buttons beside code are no navigation.
  for (const wide of document.querySelectorAll(".md-typeset__scrollwrap, pre > code")) wide.tabIndex = 0;
  for (const buttons of document.querySelectorAll(".md-code__nav")) buttons.role = "presentation";
});
