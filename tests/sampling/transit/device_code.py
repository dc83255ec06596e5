"""The code that numba-cuda makes for a GPU, compiled for the processor at hand: the emulator's kernels call it."""

import re

from fastsample_dist.sampling.transit import compile_cuda
from fastsample_dist.sampling.transit.compile_cpu import CompiledApp

_TARGET = re.compile(r"^target (triple|datalayout) .*$", re.MULTILINE)
_kept = []  # what addresses lead to


def compile_as_for_a_gpu(bound) -> CompiledApp:
    """In place of compile_cpu.compile_app."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(opt=2, jit=True)
    weights = bound.graph.weights.dtype if bound.weighted else None
    types, addresses = (bound.graph.indices.dtype, weights), []
    for name, function in zip(compile_cuda.NAMES, (bound.next, bound.step_transits, bound.initial), strict=True):
        if function is None:
            addresses.append(None)
            continue
        code = compile_cuda.code_library(function, name, bound.layout, *types, (9, 0))
        first, *others = (llvm.parse_assembly(_TARGET.sub("", text)) for text in code.llvm_strs)
        for other in others:
            first.link_in(other)
        first.triple, first.data_layout = machine.triple, str(machine.target_data)
        first.verify()
        _kept.append(llvm.create_mcjit_compiler(first, machine))
        _kept[-1].finalize_object()
        addresses.append(_kept[-1].get_function_address(f"fs_app_{name}"))
    return CompiledApp(*addresses)
