"""Processors as torch and Linux describe them, for tests on any machine."""

from vitcli.runner.machine.device import Processor


def x86(capability: str, *, onednn: bool, bf16: bool = False, amx: bool = False) -> Processor:
    return Processor(
        machine="x86_64", capability=capability, onednn_bf16=onednn, avx512_bf16=bf16, amx=amx
    )


AVX2 = x86("AVX2", onednn=False)
AVX512 = x86("AVX512", onednn=True)
ZEN4 = x86("AVX512", onednn=True, bf16=True)
SAPPHIRE_RAPIDS = x86("AVX512", onednn=True, bf16=True, amx=True)
GRAVITON3 = Processor(machine="aarch64", capability="SVE256", onednn_bf16=True)
GRAVITON2 = Processor(machine="aarch64", capability="DEFAULT", onednn_bf16=False)
