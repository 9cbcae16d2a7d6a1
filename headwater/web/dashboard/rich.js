// Shows the server's nodes: text, or [tag, attributes, children]. Vue updates only differences, so that the focused
// element keeps the keyboard's focus. `act` makes a node send a message to the server when it is clicked.
export default {
  props: { content: { type: Array, default: () => [] } },
  methods: {
    node(one) {
      if (!Array.isArray(one)) return String(one);
      const [tag, given, children] = one;
      const { act, ...attributes } = given;
      if (act !== undefined) attributes.onClick = () => this.$emit("act", act);
      return Vue.h(tag, attributes, children.map((child) => this.node(child)));
    },
  },
  render() {
    return Vue.h("div", { class: "hw-rich" }, this.content.map((one) => this.node(one)));
  },
};
