pragma circom 2.0.0;

// The product of two matrices, and whether the first row ascends.
template Bits(n) {
    signal input in;
    signal output out[n];
    var sum = 0;
    for (var i = 0; i < n; i++) {
        out[i] <-- (in >> i) & 1;
        out[i] * (out[i] - 1) === 0;
        sum += out[i] * 2 ** i;
    }
    sum === in;
}
template Matrix(n) {
    signal input left[n][n];
    signal input right[n][n];
    signal output product[n][n];
    signal output ascends;
    signal terms[n][n][n];
    signal so_far[n];
    component differences[n - 1];
    for (var i = 0; i < n; i++) {
        for (var j = 0; j < n; j++) {
            var sum = 0;
            for (var k = 0; k < n; k++) {
                terms[i][j][k] <== left[i][k] * right[k][j];
                sum += terms[i][j][k];
            }
            product[i][j] <== sum;
        }
    }
    so_far[0] <== 1;
    for (var i = 0; i < n - 1; i++) {
        differences[i] = Bits(33);
        differences[i].in <== left[0][i + 1] - left[0][i] + 2 ** 32;
        so_far[i + 1] <== so_far[i] * differences[i].out[32];
    }
    ascends <== so_far[n - 1];
    log("ascends:", ascends);
}
component main {public [left]} = Matrix(16);
