// GELU, x Phi(x).

// Returns the normal distribution function Phi(x) with an error below 1e-7, and writes its density,
// which is 0 where it is below 2^-126: a multiple of it would not be small for x near 1e38.
// Abramowitz and Stegun 1964, formula 26.2.17.
INLINE vec phi(vec x, vec *density) {
  const vec t = 1 / (larger(x, -x) * 0.2316419f + 1);
  const vec power = x * x * (-0.5f * LOG2E);
  *density = (vec)((ints)(exp2_of(power) * 0.39894228f) & (power > -126));
  vec p = t * 1.330274429f - 1.821255978f;
  p = p * t + 1.781477937f;
  p = p * t - 0.356563782f;
  p = p * t + 0.319381530f;
  const vec tail = p * t * *density;
  return choose(x > 0, 1 - tail, tail);
}

INLINE void gelu(const number *x, number *y, long count) {
  for (long i = 0; i < count; i += LANES) {
    vec value = load_numbers(x + i), density;
    store_numbers(y + i, value * phi(value, &density));
  }
}

// y = gelu(x), and slope = its derivative.
INLINE void gelu_and_slope(const number *x, number *y, float *slope, long count) {
  for (long i = 0; i < count; i += LANES) {
    vec value = load_numbers(x + i), density, below = phi(value, &density);
    store_numbers(y + i, value * below);
    store(slope + i, value * density + below);
  }
}
