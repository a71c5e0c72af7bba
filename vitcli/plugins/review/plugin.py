from vitcli.plugin import Plugin

plugin = Plugin(
    about="a page of confident errors, suspect labels, and copies with two labels",
    options={"eval": "vitcli.plugins.review.command:review_report"},
)
