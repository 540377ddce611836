pragma circom 2.0.0;

// A sponge of seventh powers, 4 inputs of 91 rounds with a key.
template Rounds(n_inputs, n_rounds) {
    signal input in[n_inputs];
    signal input key;
    signal output out;
    signal squares[n_inputs][n_rounds];
    signal fourths[n_inputs][n_rounds];
    signal sixths[n_inputs][n_rounds];
    signal at[n_inputs][n_rounds + 1];
    var state = 0;
    for (var k = 0; k < n_inputs; k++) {
        at[k][0] <== in[k] + state;
        for (var i = 0; i < n_rounds; i++) {
            var base = at[k][i] + key + (k * 1000 + i) * (k * 1000 + i) * 7919 + i;
            squares[k][i] <== base * base;
            fourths[k][i] <== squares[k][i] * squares[k][i];
            sixths[k][i] <== fourths[k][i] * squares[k][i];
            at[k][i + 1] <== sixths[k][i] * base;
        }
        state = at[k][n_rounds] + key;
    }
    out <== state;
}
component main {public [key]} = Rounds(4, 91);
