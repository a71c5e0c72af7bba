// Browsers refuse workers on file://. There, the search of the site runs in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(url) {
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      this.inside = this.frame.contentWindow;
      this.inside.postMessage = data => this.onmessage?.({data: structuredClone(data)});
      const script = this.inside.document.createElement("script");
      this.ready = new Promise(resolve => { script.onload = resolve; });
      script.onerror = () => this.onerror?.();
      script.src = new URL(url, location.href);
      this.inside.document.body.append(script);
    }

    postMessage(data) {
      this.ready.then(() => this.inside.onmessage({data: structuredClone(data)}));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
