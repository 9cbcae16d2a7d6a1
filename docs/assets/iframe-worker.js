/* Pages that are opened from disk may start no worker; search then runs in a hidden frame. */
(() => {
  if (location.protocol !== "file:") return;

  class IframeWorker extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.appendChild(this.frame);
      const scope = this.frame.contentWindow;
      this.heard = (event) => {
        if (event.source !== scope) return;
        const told = new MessageEvent("message", { data: event.data });
        this.dispatchEvent(told);
        if (this.onmessage) this.onmessage(told);
      };
      addEventListener("message", this.heard);
      this.ready = new Promise((done) => this.frame.addEventListener("load", done, { once: true }));
      scope.document.open();
      scope.document.write(
        `<script>
          postMessage = (data) => parent.dispatchEvent(new MessageEvent("message", { data, source: window }));
          importScripts = (...urls) => urls.reduce((before, url) => before.then(() => new Promise((done, failed) => {
            const script = document.createElement("script");
            script.src = url; script.onload = done; script.onerror = failed;
            document.body.appendChild(script);
          })), Promise.resolve());
        </scr` + `ipt><body><script src="${url}"></scr` + `ipt>`
      );
      scope.document.close();
    }

    postMessage(data) {
      this.ready.then(() =>
        this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data: structuredClone(data) }))
      );
    }

    terminate() {
      removeEventListener("message", this.heard);
      this.frame.remove();
    }
  }

  window.Worker = IframeWorker;
})();
