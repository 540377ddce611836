pragma circom 2.0.0;

// Additions, rotations and exclusive ors of words of 32 bits, in many rounds.
template Word() {
    signal input in;
    signal output out[32];
    signal carry[3];
    var sum = 0;
    for (var i = 0; i < 32; i++) {
        out[i] <-- (in >> i) & 1;
        out[i] * (out[i] - 1) === 0;
        sum += out[i] * 2 ** i;
    }
    for (var i = 0; i < 3; i++) {
        carry[i] <-- (in >> (32 + i)) & 1;
        carry[i] * (carry[i] - 1) === 0;
        sum += carry[i] * 2 ** (32 + i);
    }
    sum === in;
}
template Words(n_rounds) {
    signal input a;
    signal input b;
    signal output c;
    component words[n_rounds + 2];
    signal mixed[n_rounds][32];
    words[0] = Word();
    words[0].in <== a;
    words[1] = Word();
    words[1].in <== b;
    for (var r = 0; r < n_rounds; r++) {
        var left = 0;
        var right = 0;
        for (var i = 0; i < 32; i++) {
            var x = words[r + 1].out[i];
            var y = words[r].out[(i + 7) % 32];
            mixed[r][i] <== x + y - 2 * x * y;
            left += mixed[r][i] * 2 ** i;
            right += words[r].out[(i + 13) % 32] * 2 ** i;
        }
        words[r + 2] = Word();
        words[r + 2].in <== left + right + 2654435769;
    }
    var last = 0;
    for (var i = 0; i < 32; i++) last += words[n_rounds + 1].out[i] * 2 ** i;
    c <== last;
}
component main = Words(40);
