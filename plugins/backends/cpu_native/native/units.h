// What one query token goes through: the keys of an item, a few dozen at a time, and in each of these head by head. Their
// rows are fetched while those before are computed with.
#pragma once

#include "step.h"

namespace hardpoint::HARDPOINT_ISA {

// Key heads that one item may have: a block's heads lie together, and are read together.
constexpr int MOST_TOGETHER = 8;

inline int most_together(const Layer &layer) {
    return std::clamp(MOST_TOGETHER * 8 / ((layer.group() + 3) / 4), 1, MOST_TOGETHER);
}

// Rows of some keys for one head.
template <class T>
struct HeadRows {
    const T *const *first;  // the first head's
    ptrdiff_t head;         // elements from there

    const T *operator[](int i) const { return first[i] + head; }
    HeadRows operator+(int i) const { return {first + i, head}; }
};

// The keys of a tile for one key head. Rows beyond the last repeat it: they may be read, and weigh nothing.
template <class T>
struct Unit {
    int head, from, count;
    HeadRows<T> keys, values;
    const bool *straight;  // of each sixteen: they are all there, and lie a token's stride from one another
};

// Fetches a unit's rows in so many steps. Memory answers best to requests that come evenly and go to several pages in
// turn: a handful in a burst is waited for, and the arithmetic behind them too.
template <class T, int KEYS>
class Fetching {
  public:
    Fetching(const Layer &layer, const Unit<T> *unit, int steps)
        : unit_(unit), steps_(steps), key_lines_(lines(layer.head_size)),
          value_lines_(layer.latent ? 0 : lines(layer.v_head_size)), lines_(std::max(key_lines_, value_lines_)),
          left_(unit ? KEYS / 4 * lines_ : 0), each_(left_) {}

    void step() {
        for (due_ += each_; due_ >= steps_; due_ -= steps_) some();
    }
    void rest() {
        while (left_ > 0) some();
    }

  private:
    static int lines(int elements) { return static_cast<int>((elements * sizeof(T) + 63) / 64); }
    static void fetch(const T *row, int line) { __builtin_prefetch(reinterpret_cast<const char *>(row) + line * 64, 0, 3); }

    void some() {
        if (left_-- <= 0) return;
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            if (line_ < key_lines_) fetch(unit_->keys[row_ + i * (KEYS / 4)], line_);
            if (line_ < value_lines_) fetch(unit_->values[row_ + i * (KEYS / 4)], line_);
        }
        if (++line_ == lines_) line_ = 0, row_++;
    }

    const Unit<T> *unit_;
    int steps_, key_lines_, value_lines_, lines_, left_, each_, due_ = 0, row_ = 0, line_ = 0;
};

// Goes through an item. `work` also gets the unit that comes next, or null.
template <int KEYS, class T, class Work>
void each_unit(const Call<T> &c, const Item &item, int first_head, int heads, Work &&work) {
    struct Table {
        int from, count;
        const T *keys[KEYS], *values[KEYS];
        bool straight[(KEYS + 15) / 16];
    } ring[3];  // the last one may still be in use while the next one begins
    const Sequence &s = c.step.sequences[item.sequence];
    const int units = (item.high - item.low + KEYS - 1) / KEYS * heads;
    auto find = [&](int number) -> Unit<T> {
        const int head = number % heads;
        Table &table = ring[number / heads % 3];
        if (head == 0) {
            table.from = item.low + number / heads * KEYS;
            table.count = std::min(KEYS, item.high - table.from);
            c.keys.rows(c.step, s, first_head, table.from, table.count, table.keys);
            c.values.rows(c.step, s, first_head, table.from, table.count, table.values);
            for (int i = table.count; i < KEYS; i++)
                table.keys[i] = table.keys[table.count - 1], table.values[i] = table.values[table.count - 1];
            for (int i = 0; i < KEYS; i += 16)
                table.straight[i / 16] = i + 16 <= table.count && c.keys.straight(table.from + i, 16);
        }
        return {head, table.from, table.count, {table.keys, head * c.keys.head}, {table.values, head * c.values.head}, table.straight};
    };
    if (units == 0) return;
    Unit<T> unit = find(0);
    Fetching<T, KEYS>(c.layer, &unit, 1).rest();
    for (int number = 1; number < units; number++) {
        const Unit<T> next = find(number);
        work(unit, &next);
        unit = next;
    }
    work(unit, nullptr);
}

}  // namespace hardpoint::HARDPOINT_ISA
