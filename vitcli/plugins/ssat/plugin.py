from vitcli.plugin import Plugin

plugin = Plugin(
    about="classify and reconstruct masked patches in one training (Das et al. 2024)",
    needs=("mae",),
    rows={"task.name": {"ssat": "vitcli.plugins.ssat.spec:ROW"}},
)
