// Browsers start no worker from a file. The search then runs in a hidden frame with the same interface: messages there and back.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.appendChild(frame)
      const inside = frame.contentWindow
      // As in a worker: scripts one after the other, and messages to whoever made it.
      inside.importScripts = (...scripts) => scripts.reduce((before, script) => before.then(() => this.load(inside, script)), Promise.resolve())
      inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      this.inside = inside
      this.ready = this.load(inside, address)
    }

    load(inside, address) {
      return new Promise((resolve, reject) => {
        const script = inside.document.createElement("script")
        script.src = new URL(address, location).href
        script.onload = resolve
        script.onerror = () => reject(new Error(`cannot load ${script.src}`))
        inside.document.body.appendChild(script)
      })
    }

    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })))
    }

    terminate() {
      this.inside.frameElement.remove()
    }
  }
}
