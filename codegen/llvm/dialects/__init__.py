"""The assembly language of each architecture. A mnemonic and its operands come in; the class of the instruction goes
out, one of `codegen.llvm.instructions.CLASSES`. Each file holds one `AsmDialect`."""
