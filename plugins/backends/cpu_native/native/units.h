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
    Fetching(const Call<T> &c, const Unit<T> *unit, int steps) : unit_(unit), steps_(steps) {
        if (unit == nullptr) return;
        const Layer &layer = c.layer;
        bool dense = c.keys.token == layer.head_size && (layer.latent || c.values.token == layer.v_head_size);
        for (int i = 0; i < KEYS / 16; i++) dense &= unit->straight[i];
        rows_ = dense ? PART : 1;
        key_end_ = rows_ * layer.head_size * int(sizeof(T));
        value_end_ = layer.latent ? 0 : rows_ * layer.v_head_size * int(sizeof(T));
        end_ = std::max(key_end_, value_end_);
        left_ = each_ = PART / rows_ * ((end_ + LINE - 1) / LINE);
        point();
    }
    void step() {
        for (due_ += each_; due_ >= steps_; due_ -= steps_) some();
    }
    void rest() {
        while (left_ > 0) some();
    }

  private:
    static constexpr int LINE = 64, STREAMS = 4, PART = KEYS / STREAMS;  // bytes; of keys, and as many of values; keys

    void point() {
        for (int i = 0; i < STREAMS; i++) {
            keys_[i] = reinterpret_cast<const char *>(unit_->keys[row_ + i * PART]);
            values_[i] = reinterpret_cast<const char *>(unit_->values[row_ + i * PART]);
        }
    }
    void some() {
        if (left_ == 0) return;
        left_--;
        if (at_ < key_end_)
            for (int i = 0; i < STREAMS; i++) __builtin_prefetch(keys_[i] + at_, 0, 3);
        if (at_ < value_end_)
            for (int i = 0; i < STREAMS; i++) __builtin_prefetch(values_[i] + at_, 0, 3);
        at_ += LINE;
        if (at_ < end_ || left_ == 0) return;
        at_ = 0, row_ += rows_;
        point();
    }

    const Unit<T> *unit_;
    const char *keys_[STREAMS], *values_[STREAMS];
    int steps_, left_ = 0, each_ = 0, due_ = 0;      // fetches of a line from each stream
    int rows_ = 1, row_ = 0, at_ = 0, key_end_ = 0, value_end_ = 0, end_ = 0;  // rows in one piece; bytes of them
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
    Fetching<T, KEYS>(c, &unit, 1).rest();
    for (int number = 1; number < units; number++) {
        const Unit<T> next = find(number);
        work(unit, &next);
        unit = next;
    }
    work(unit, nullptr);
}

}  // namespace hardpoint::HARDPOINT_ISA
