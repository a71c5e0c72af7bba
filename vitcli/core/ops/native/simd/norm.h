// LayerNorm of rows, and its gradient. width is a multiple of LANES.

// y = norm(x) weight + bias. statistics (rows, 2) gets the mean and 1 / sqrt(variance + eps).
static void normalise(const float *x, const float *weight, const float *bias, number *y,
                      float *statistics, long rows, long width, float eps) {
  for (long i = 0; i < rows; i++, x += width, y += width) {
    vec total = {0}, squares = {0};
    for (long j = 0; j < width; j += LANES) total += load(x + j);
    const float mean = sum(total) / width;
    for (long j = 0; j < width; j += LANES) {
      const vec t = load(x + j) - mean;
      squares += t * t;
    }
    const float scale = inverse_deviation(sum(squares), width, eps);
    for (long j = 0; j < width; j += LANES)
      store_numbers(y + j, (load(x + j) - mean) * scale * load(weight + j) + load(bias + j));
    statistics[2 * i] = mean, statistics[2 * i + 1] = scale;
  }
}

// Adds the gradient of x to grad_x; adds those of weight and bias to slopes and shifts.
static void normalise_back(const float *g, const float *x, const float *statistics,
                           const float *weight, float *grad_x, float *slopes, float *shifts,
                           long rows, long width) {
  for (long i = 0; i < rows; i++, x += width, g += width, grad_x += width) {
    const float mean = statistics[2 * i], scale = statistics[2 * i + 1];
    vec first = {0}, second = {0};
    for (long j = 0; j < width; j += LANES) {
      const vec dy = load(g + j), normal = (load(x + j) - mean) * scale, dn = dy * load(weight + j);
      store(shifts + j, load(shifts + j) + dy);
      store(slopes + j, load(slopes + j) + dy * normal);
      first += dn;
      second += dn * normal;
    }
    const float a = sum(first) / width, b = sum(second) / width;
    for (long j = 0; j < width; j += LANES) {
      const vec normal = (load(x + j) - mean) * scale, dn = load(g + j) * load(weight + j);
      store(grad_x + j, load(grad_x + j) + (dn - (normal * b + a)) * scale);
    }
  }
}
