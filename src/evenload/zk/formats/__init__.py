"""Strict parsers and writers of the iden3 binary formats: .zkey (Groth16), .wtns and .r1cs over BN254."""
