"""Small convolutions and poolings as LLVM IR, made for one shape."""
