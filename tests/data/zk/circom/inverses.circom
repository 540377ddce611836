pragma circom 2.0.0;

// Products, quotients and tests for zero, with hints that are no products.
template IsZero() {
    signal input in;
    signal output out;
    signal inverse;
    inverse <-- in != 0 ? 1 / in : 0;
    out <== 1 - in * inverse;
    in * out === 0;
}
template Inverses(n) {
    signal input numerators[n];
    signal input denominators[n];
    signal output quotients[n];
    signal output n_zero;
    component tests[n];
    var zeros = 0;
    for (var i = 0; i < n; i++) {
        tests[i] = IsZero();
        tests[i].in <== numerators[i];
        zeros += tests[i].out;
        assert(denominators[i] != 0);
        quotients[i] <-- numerators[i] / denominators[i];
        quotients[i] * denominators[i] === numerators[i];
    }
    n_zero <== zeros;
}
component main {public [denominators]} = Inverses(700);
