from vitcli.plugin import Plugin

plugin = Plugin(
    about="a page of confident errors and suspect labels",
    options={"eval": "vitcli.plugins.review.command:review_report"},
)
