"""Assembly as each architecture writes it: the class of every instruction (see ``codegen.llvm.instructions``)."""
