// Where the elements and scales of a WeightMatrix lie. Included inside an unnamed namespace by every source that reads stored
// weights, since those are compiled for several instruction sets.

// Elements, and bytes, from one row of data to the next.
static inline int64_t row_elements(const WeightMatrix& w) { return w.stride == 0 ? w.cols : w.stride; }
static inline int64_t row_bytes_of(const WeightMatrix& w) { return row_elements(w) * dtype_bits(w.dtype) / 8; }
static inline bool is_contiguous(const WeightMatrix& w) { return row_elements(w) == w.cols; }
static inline int64_t scales_in_row(const WeightMatrix& w) {
  return w.scale_stride == 0 ? (w.cols + w.block_cols - 1) / w.block_cols : w.scale_stride;
}

// The same view, no stride left out, whose first column is in the first column of scales: no divisions for each row.
static inline WeightMatrix resolved(const WeightMatrix& w) {
  WeightMatrix same = w;
  same.stride = row_elements(w);
  if (w.scale == nullptr) return same;
  const int64_t skipped = w.col0 / w.block_cols;
  same.scale_stride = scales_in_row(w);
  same.scale = static_cast<const uint8_t*>(w.scale) + skipped * dtype_bits(w.scale_dtype) / 8;
  same.col0 = w.col0 - skipped * w.block_cols;
  return same;
}

// Columns of a resolved view that share a scale: group g holds [g * columns - before, (g + 1) * columns - before), cut to
// [0, cols).
struct ScaleGroups {
  int64_t columns, before;
  int64_t of(int64_t k) const { return (k + before) / columns; }
  int64_t end(int64_t group) const { return (group + 1) * columns - before; }
};
static inline ScaleGroups scale_groups(const WeightMatrix& w) {
  if (w.scale == nullptr) return {w.cols, 0};  // one group
  return {w.block_cols, w.col0};
}

// Index of the scale of group 0 of a row of a resolved view.
static inline int64_t scale_offset(const WeightMatrix& w, int64_t row) {
  return (row + w.row0) / w.block_rows * w.scale_stride;
}
