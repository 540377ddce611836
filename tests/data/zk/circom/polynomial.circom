pragma circom 2.0.0;

// A polynomial at several places by Horner's rule, with a function that runs while the witness is made.
function power(base, n) {
    var result = 1;
    for (var i = 0; i < n; i++) result *= base;
    return result;
}
template Polynomial(degree, n_places) {
    signal input coefficients[degree + 1];
    signal input places[n_places];
    signal output values[n_places];
    signal partial[n_places][degree + 1];
    for (var p = 0; p < n_places; p++) {
        partial[p][0] <== coefficients[degree];
        for (var k = 0; k < degree; k++) {
            partial[p][k + 1] <== partial[p][k] * places[p] + coefficients[degree - 1 - k];
        }
        values[p] <== partial[p][degree] + power(3, 40);
    }
}
component main = Polynomial(255, 8);
