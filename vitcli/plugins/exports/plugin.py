from vitcli.plugin import Plugin

plugin = Plugin(
    about="trained models as ONNX, safetensors, pt2 or a model card",
    needs=("weights",),
    rows={"classifier": {".onnx": "vitcli.plugins.exports.classifier:load_onnx"}},
    commands={"export": "vitcli.plugins.exports.command:export"},
)
