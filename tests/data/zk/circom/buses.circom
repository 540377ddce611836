pragma circom 2.2.0;

bus Point() {
    signal x;
    signal y;
}

bus Segment(n) {
    Point() ends[2];
    signal weights[n];
}

template Sum() {
    input Point() p;
    input Segment(3) s[2];
    signal input k;
    output Point() out;
    out.x <== p.x * k + s[0].ends[1].x + s[1].weights[2];
    out.y <== p.y * k + s[1].ends[0].y - s[0].weights[0];
}

component main {public [p]} = Sum();
