from vitcli.plugin import Plugin

plugin = Plugin(
    about="studies that train every combination of their variants: effects and interactions",
    rows={
        "design": {"factorial": "vitcli.plugins.factorial.crossing:ROW"},
        "study.figure": {"effects": "vitcli.plugins.factorial.crossing:EFFECTS"},
    },
)
