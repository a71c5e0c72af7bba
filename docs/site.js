// Browsers refuse workers on file://. There, the search of the site runs in a hidden frame instead.
// Material looks for the name IFrameWorker in its parent, to find the scripts beside the worker.
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      this.inside = this.frame.contentWindow;
      this.inside.postMessage = data => {
        const message = new MessageEvent("message", {data});
        this.dispatchEvent(message);
        this.onmessage?.(message);
      };
      this.inside.importScripts = (...urls) =>
        urls.reduce((before, each) => before.then(() => this.load(each)), Promise.resolve());
      this.ready = this.load(url);
    }

    load(url) {
      return new Promise((resolve, reject) => {
        const script = this.frame.contentDocument.createElement("script");
        Object.assign(script, {src: new URL(url, location.href), onload: resolve, onerror: reject});
        this.frame.contentDocument.body.append(script);
      });
    }

    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", {data})));
    }

    terminate() {
      this.frame.remove();
    }
  };
}

window.addEventListener("load", () => {
  // Wide tables and code scroll, also by keyboard. The buttons beside code are no navigation.
  for (const wide of document.querySelectorAll(".md-typeset__scrollwrap, pre > code")) wide.tabIndex = 0;
  for (const buttons of document.querySelectorAll(".md-code__nav")) buttons.role = "presentation";
});
