// The native kernels and the sums at winners against plain loops, for `make sanitize`: every instruction set of the machine, dtype, semiring, odd and
// even sizes, operands in both orders, broadcast, at addresses aligned to no more than an entry, with and without NaN, infinities and
// absorbing integers; on four threads. Then four calls at once, again and again on the same threads. Then networks of three tables and every
// question to them, ordinary sums and their derivatives, and plans in which one number is changed. Then alignments, also of symbols, chains, with durations too, paths and bounds.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iterator>
#include <limits>
#include <random>
#include <thread>
#include <vector>

#include "../../ext_tropical/native/alignments.h"
#include "../../ext_tropical/native/at_winner.h"
#include "../../ext_tropical/native/bounds.h"
#include "../../ext_tropical/native/optimum.h"
#include "../../ext_tropical/native/chains.h"
#include "../../ext_tropical/native/durations.h"
#include "../../ext_tropical/native/network.h"
#include "../../ext_tropical/native/network_bound.h"
#include "../../ext_tropical/native/paths.h"
#include "../../ext_tropical/native/symbols.h"

using namespace tropical;

struct Threads : Pool {
  ~Threads() override {
    for (std::thread& t : started) t.join();
  }
  int64_t threads() const override { return 4; }
  void schedule(std::function<void()> task) override { started.emplace_back(std::move(task)); }
  std::vector<std::thread> started;
};

template <class T>
T times(Algebra algebra, T a, T b) {
  if (algebra == Algebra::kOrAnd) return static_cast<T>(a && b);
  if (algebra == Algebra::kMinMax) return a != a || a > b ? a : b;
  if (algebra == Algebra::kMaxMul) {
    if constexpr (std::is_integral_v<T>) return static_cast<T>(static_cast<uint32_t>(a) * static_cast<uint32_t>(b));
    return a * b;
  }
  if constexpr (std::is_integral_v<T>) {
    const T zero = algebra == Algebra::kMaxPlus ? std::numeric_limits<T>::min() : std::numeric_limits<T>::max();
    if (a == zero || b == zero) return zero;
    return static_cast<T>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b));
  }
  return a + b;
}

template <class T>
int check(const Kernels& kernels, Algebra algebra, Type type, std::mt19937& random, const int64_t (&size)[4], bool special, bool own_first) {
  const int64_t batch = size[0], contracted = size[1], rows = size[2], columns = size[3];
  // Blocks of exactly the bytes that are needed, one entry after an aligned address: what is read or written outside is seen.
  const auto array = [](int64_t entries) { return std::vector<char>(static_cast<size_t>(entries + 1) * sizeof(T)); };
  std::vector<char> left = array(batch * contracted * rows), right = array(batch * contracted * columns), out = array(batch * rows * columns);
  std::vector<int32_t> winner(static_cast<size_t>(batch * rows * columns));
  T *lhs = reinterpret_cast<T*>(left.data()) + 1, *rhs = reinterpret_cast<T*>(right.data()) + 1, *value = reinterpret_cast<T*>(out.data()) + 1;
  const T odd[] = {std::numeric_limits<T>::has_quiet_NaN ? std::numeric_limits<T>::quiet_NaN() : std::numeric_limits<T>::min(),
                   std::numeric_limits<T>::has_infinity ? std::numeric_limits<T>::infinity() : std::numeric_limits<T>::max(),
                   std::numeric_limits<T>::has_infinity ? -std::numeric_limits<T>::infinity() : T(7), T(0)};
  const auto entry = [&] {
    if (type == Type::kBool) return static_cast<T>(random() % (special ? 40 : 3) == 0);
    if (special && random() % 50 == 0) return odd[random() % 4];
    return static_cast<T>(static_cast<int>(random() % 19) - 9);
  };
  for (int64_t i = 0; i < batch * contracted * rows; ++i) lhs[i] = entry();
  for (int64_t i = 0; i < batch * contracted * columns; ++i) rhs[i] = entry();
  const auto operand = [&](const T* data, int64_t own) {
    return own_first ? Operand{data, own * contracted, 1, contracted} : Operand{data, own * contracted, own, 1};
  };
  const Problem problem{algebra, type, batch, contracted, rows, columns, operand(lhs, rows), operand(rhs, columns), value, winner.data()};
  Problem values = problem;
  std::vector<char> alone = out;
  values.value = reinterpret_cast<T*>(alone.data()) + 1;
  values.winner = nullptr;
  {
    Threads pool;
    solve(pool, problem, kernels);
    solve(pool, values, kernels);
  }
  int wrong = 0;
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < columns; ++j) {
        T best{};
        int32_t first = -1;
        for (int64_t k = 0; k < contracted; ++k) {
          const T x = times(algebra, lhs[b * problem.lhs.batch + k * problem.lhs.contracted + i * problem.lhs.own],
                            rhs[b * problem.rhs.batch + k * problem.rhs.contracted + j * problem.rhs.own]);
          const bool better = algebra == Algebra::kMinPlus || algebra == Algebra::kMinMax ? x < best : x > best;
          if (first < 0 || (best == best && (x != x || better))) best = x, first = static_cast<int32_t>(k);
        }
        const int64_t at = (b * rows + i) * columns + j;
        const auto same = [&](T x) { return x == best || (x != x && best != best); };
        wrong += !same(value[at]) || winner[static_cast<size_t>(at)] != first || !same(reinterpret_cast<T*>(alone.data())[at + 1]);
      }
  if (wrong) std::printf("%s, algebra %d, type %d, %ld %ld %ld %ld: %d wrong\n", kernels.name, (int)algebra, (int)type, (long)batch, (long)contracted, (long)rows, (long)columns, wrong);
  return wrong;
}

template <class T>
int check_sums(Type type, std::mt19937& random, const int64_t (&size)[4], bool to_rows, bool own_first) {
  const int64_t batch = size[0], contracted = size[1], rows = size[2], columns = size[3], own = to_rows ? rows : columns;
  const size_t cells = static_cast<size_t>(batch * rows * columns), entries = static_cast<size_t>(batch * contracted * own);
  std::vector<T> cell(cells), result(entries, T(7)), want(entries, T(0));
  std::vector<int32_t> winner(cells);
  const Sum sum{type, to_rows, batch, contracted, rows, columns, cell.data(), winner.data(), result.data(), own * contracted, own_first ? 1 : own, own_first ? contracted : 1};
  for (size_t i = 0; i < cells; ++i) {
    cell[i] = static_cast<T>(static_cast<int>(random() % 19) - 9);
    winner[i] = static_cast<int32_t>(random() % static_cast<uint64_t>(contracted + 2)) - 1;
    if (winner[i] < 0 || winner[i] == contracted) continue;
    const int64_t at = static_cast<int64_t>(i), mine = to_rows ? at / columns % rows : at % columns;
    want[static_cast<size_t>(at / (rows * columns) * sum.batch_stride + winner[i] * sum.contracted_stride + mine * sum.own_stride)] += cell[i];
  }
  Threads pool;
  add_at_winner(pool, sum);
  if (result != want) std::printf("sum, type %d, %ld %ld %ld %ld: wrong\n", (int)type, (long)batch, (long)contracted, (long)rows, (long)columns);
  return result != want;
}

// "ab,bc,cad->d" by the steps 0,1:ac and 3,2:d.
struct Network {
  int64_t a, b, c, d;
  std::vector<int64_t> plan(const std::vector<int64_t>& active, bool has_steps = true, int64_t lanes = -1) const {
    std::vector<int64_t> found{4, 3, has_steps ? 2 : 0, 3, static_cast<int64_t>(active.size()), 1, lanes, a, b, c, d, 3, 0, 1, 2};
    found.insert(found.end(), active.begin(), active.end());
    for (int64_t x : {2, 0, 1, 2, 1, 2, 3, 2, 0, 3}) found.push_back(x);
    if (has_steps)
      for (int64_t x : {0, 1, 2, 0, 2, 3, 2, 1, 3}) found.push_back(x);
    return found;
  }
};

template <class T>
int check_network(const Kernels& kernels, Algebra algebra, Type type, std::mt19937& random, const Network& n, bool changes) {
  const bool is_log = algebra == Algebra::kLogSumExp;
  std::vector<T> x(static_cast<size_t>(n.a * n.b)), y(static_cast<size_t>(n.b * n.c)), z(static_cast<size_t>(n.c * n.a * n.d)), value(static_cast<size_t>(n.d));
  for (auto* table : {&x, &y, &z})
    for (T& entry : *table) entry = type == Type::kBool ? static_cast<T>(random() % 3 == 0) : static_cast<T>(static_cast<int>(random() % 9) - 4);
  std::vector<int32_t> labels(static_cast<size_t>(3 * n.d));
  std::vector<T> gx(x.size()), gy(y.size()), gz(z.size()), one(value.size(), T(1)), total(value.size()), rows(3 * value.size());
  const auto buffer = [](auto& v) { return Buffer{v.data(), static_cast<int64_t>(v.size())}; };
  const auto ask = [&](Question question, const std::vector<int64_t>& plan, std::vector<Buffer> in, std::vector<Buffer> out) {
    Threads pool;
    return answer(pool, {plan.data(), static_cast<int64_t>(plan.size()), type, algebra, question, 0.5, std::move(in), std::move(out)}, kernels);
  };
  const std::vector<Buffer> tables{buffer(x), buffer(y), buffer(z)}, slopes{buffer(gx), buffer(gy), buffer(gz)};
  const std::vector<int64_t> whole = n.plan({}), all = n.plan({0, 1, 2}), alone = n.plan({0, 1, 2}, false);
  int wrong = 0;
  const auto at = [&](int64_t i, int64_t j, int64_t k, int64_t d) {
    return times(algebra, times(algebra, x[i * n.b + j], y[j * n.c + k]), z[(k * n.a + i) * n.d + d]);
  };
  wrong += !ask(is_log ? Question::kValue : Question::kLabels, whole, tables, is_log ? std::vector<Buffer>{buffer(value)} : std::vector<Buffer>{buffer(value), buffer(labels)}).empty();
  for (int64_t d = 0; d < n.d && algebra != Algebra::kMaxMul; ++d) {  // of mixed signs the product of three has no law
    double sum = 0;
    T best = at(0, 0, 0, d);
    for (int64_t i = 0; i < n.a; ++i)
      for (int64_t j = 0; j < n.b; ++j)
        for (int64_t k = 0; k < n.c; ++k) {
          const T candidate = at(i, j, k, d);
          sum += std::exp(static_cast<double>(candidate) / 0.5);
          const bool is_less = algebra == Algebra::kMinPlus || algebra == Algebra::kMinMax;
          if (is_less ? candidate < best : candidate > best) best = candidate;
        }
    if (is_log) wrong += std::abs(static_cast<double>(value[d]) - 0.5 * std::log(sum)) > 1e-4;
    else wrong += value[d] != best || (type != Type::kBool && at(labels[d], labels[n.d + d], labels[2 * n.d + d], d) != best);
  }
  if (is_log) {
    wrong += !ask(Question::kLogCotangent, all, {tables[0], tables[1], tables[2], buffer(one)}, slopes).empty();
    double sum = 0;
    for (T share : gz) sum += static_cast<double>(share);
    wrong += std::abs(sum - static_cast<double>(n.d)) > 1e-3 * static_cast<double>(n.d);
    wrong += !ask(Question::kLogTangent, all, {tables[0], tables[1], tables[2], tables[0], tables[1], tables[2]}, {buffer(total)}).empty();
    std::vector<T> bend(total.size()), cx(x.size()), cy(y.size()), cz(z.size());
    wrong += !ask(Question::kLogBend, all, {tables[0], tables[1], tables[2], tables[0], tables[1], tables[2], tables[0], tables[1], tables[2]}, {buffer(bend)}).empty();
    wrong += !ask(Question::kLogCurvature, all, {tables[0], tables[1], tables[2], buffer(one), tables[0], tables[1], tables[2]}, {buffer(cx), buffer(cy), buffer(cz)}).empty();
    double by_value = 0, by_tables = 0;  // the same second derivative, from both ends
    for (T part : bend) by_value += static_cast<double>(part);
    for (size_t i = 0; i < x.size(); ++i) by_tables += static_cast<double>(cx[i]) * static_cast<double>(x[i]);
    for (size_t i = 0; i < y.size(); ++i) by_tables += static_cast<double>(cy[i]) * static_cast<double>(y[i]);
    for (size_t i = 0; i < z.size(); ++i) by_tables += static_cast<double>(cz[i]) * static_cast<double>(z[i]);
    wrong += std::abs(by_value - by_tables) > 1e-2 * (1 + std::abs(by_value));
    // Numbers that all entries share, one for each cell of the value, change the value by their sum and no share.
    std::vector<T> far(x), farther(z), moved(value.size()), mx(x.size()), my(y.size()), mz(z.size());
    for (T& entry : far) entry += T(128);
    for (size_t i = 0; i < farther.size(); ++i) farther[i] += T(64) * static_cast<T>(static_cast<int64_t>(i) % n.d);
    const std::vector<Buffer> away{buffer(far), tables[1], buffer(farther)};
    wrong += !ask(Question::kValue, whole, away, {buffer(moved)}).empty();
    for (int64_t d = 0; d < n.d; ++d) wrong += std::abs(static_cast<double>(moved[d] - value[d]) - 128 - 64 * static_cast<double>(d)) > 1e-3;
    wrong += !ask(Question::kLogCotangent, all, {away[0], away[1], away[2], buffer(one)}, {buffer(mx), buffer(my), buffer(mz)}).empty();
    for (size_t i = 0; i < z.size(); ++i) wrong += std::abs(static_cast<double>(mz[i] - gz[i])) > 1e-4;
    x[0] = std::numeric_limits<T>::quiet_NaN(), y[0] = -std::numeric_limits<T>::infinity(), z[0] = T(1000);  // cells from all candidates
    wrong += !ask(Question::kLogCotangent, all, {tables[0], tables[1], tables[2], buffer(one)}, slopes).empty();
    wrong += !ask(Question::kLogTangent, all, {tables[0], tables[1], tables[2], tables[0], tables[1], tables[2]}, {buffer(total)}).empty();
  } else if (type == Type::kF32 || type == Type::kF64) {
    wrong += !ask(Question::kTotal, alone, {buffer(labels), tables[0], tables[1], tables[2]}, {buffer(total)}).empty();
    if (algebra == Algebra::kMaxPlus || algebra == Algebra::kMinPlus) wrong += total != value;
    wrong += !ask(Question::kEntries, alone, {buffer(labels), tables[0], tables[1], tables[2]}, {buffer(rows)}).empty();
    wrong += !ask(Question::kAddEntries, alone, {buffer(labels), buffer(rows)}, slopes).empty();
    wrong += !ask(Question::kAddTotal, alone, {buffer(labels), buffer(one)}, slopes).empty();
    labels[0] = static_cast<int32_t>(n.a);
    wrong += ask(Question::kTotal, alone, {buffer(labels), tables[0], tables[1], tables[2]}, {buffer(total)}).empty();
  }
  for (size_t i = 0; changes && i <= whole.size(); ++i)
    for (int64_t number : {-2, -1, 0, 1, 2, 3, 9, 1 << 30}) {  // refused, or an answer of the same sizes
      std::vector<int64_t> other(whole.begin(), whole.begin() + static_cast<int64_t>(number == -2 ? i : whole.size()));
      if (i < other.size()) other[i] = number;
      ask(is_log ? Question::kValue : Question::kLabels, other, tables, is_log ? std::vector<Buffer>{buffer(value)} : std::vector<Buffer>{buffer(value), buffer(labels)});
    }
  if (wrong) std::printf("network, %s, algebra %d, type %d, %ld %ld %ld %ld: %d wrong\n", kernels.name, (int)algebra, (int)type, (long)n.a, (long)n.b, (long)n.c, (long)n.d, wrong);
  return wrong;
}

// Ordinary sums: the value against a loop, also where tables are far from 1; and what is linear from both ends.
template <class T>
int check_ordinary_sums(const Kernels& kernels, Type type, std::mt19937& random, const Network& n, int64_t lanes) {
  std::vector<T> x(static_cast<size_t>(n.a * n.b)), y(static_cast<size_t>(n.b * n.c)), z(static_cast<size_t>(n.c * n.a * n.d)), value(static_cast<size_t>(n.d)), bar(value.size()), moved(value.size());
  const T far = type == Type::kF32 ? T(1e30) : T(1e200);
  const auto fill = [&](std::vector<T>& table, T scale) {
    for (T& entry : table) entry = random() % 5 ? scale * (static_cast<T>(random() % 1000) / 500 - 1) : T(0);
  };
  fill(x, far), fill(y, T(1)), fill(z, 1 / far), fill(bar, T(1));
  std::vector<T> tx(x.size()), ty(y.size()), tz(z.size()), sx(x.size()), sy(y.size()), sz(z.size()), gx(x.size()), gy(y.size()), gz(z.size());
  fill(tx, far), fill(ty, T(1)), fill(tz, 1 / far), fill(sx, far), fill(sy, T(1)), fill(sz, 1 / far);
  std::vector<int32_t> exponents(value.size());
  const auto buffer = [](auto& v) { return Buffer{v.data(), static_cast<int64_t>(v.size())}; };
  const auto ask = [&](Question question, const std::vector<int64_t>& plan, std::vector<Buffer> in, std::vector<Buffer> out) {
    Threads pool;
    return answer(pool, {plan.data(), static_cast<int64_t>(plan.size()), type, Algebra::kSumProduct, question, 1, std::move(in), std::move(out)}, kernels);
  };
  const std::vector<Buffer> tables{buffer(x), buffer(y), buffer(z)}, first{buffer(tx), buffer(ty), buffer(tz)}, second{buffer(sx), buffer(sy), buffer(sz)}, slopes{buffer(gx), buffer(gy), buffer(gz)};
  const std::vector<int64_t> whole = n.plan({}, true, lanes), all = n.plan({0, 1, 2}, true, lanes);
  const auto joined = [](std::vector<Buffer> to, std::initializer_list<std::vector<Buffer>> more) {
    for (const auto& each : more) to.insert(to.end(), each.begin(), each.end());
    return to;
  };
  const double tolerance = type == Type::kF32 ? 1e-4 : 1e-12;
  int wrong = !ask(Question::kSum, whole, tables, {buffer(value)}).empty();
  wrong += !ask(Question::kScaledSum, whole, tables, {buffer(moved), buffer(exponents)}).empty();
  for (int64_t d = 0; d < n.d; ++d) {
    long double sum = 0, size = 0;
    for (int64_t i = 0; i < n.a; ++i)
      for (int64_t j = 0; j < n.b; ++j)
        for (int64_t k = 0; k < n.c; ++k) {
          const long double term = static_cast<long double>(x[static_cast<size_t>(i * n.b + j)]) * y[static_cast<size_t>(j * n.c + k)] * z[static_cast<size_t>((k * n.a + i) * n.d + d)];
          sum += term, size += std::abs(term);
        }
    const auto at = static_cast<size_t>(d);
    wrong += std::abs(value[at] - static_cast<double>(sum)) > tolerance * static_cast<double>(size);
    wrong += std::abs(std::ldexp(static_cast<double>(moved[at]), exponents[at]) - static_cast<double>(sum)) > tolerance * static_cast<double>(size);
  }
  // The derivative along one set, or two, from both ends; and along two sets of what is linear in each table.
  for (const auto& others : {std::vector<Buffer>{}, second}) {
    wrong += !ask(Question::kSumTangent, all, joined(tables, {{buffer(exponents)}, others, first}), {buffer(moved)}).empty();
    wrong += !ask(Question::kSumCotangent, all, joined(tables, {{buffer(exponents), buffer(bar)}, others}), slopes).empty();
    double by_value = 0, by_tables = 0, size = 0;
    for (size_t i = 0; i < value.size(); ++i) by_value += static_cast<double>(moved[i]) * bar[i], size += std::abs(static_cast<double>(moved[i]) * bar[i]);
    const auto add = [&](const std::vector<T>& slope, const std::vector<T>& tangent) {
      for (size_t i = 0; i < slope.size(); ++i) by_tables += static_cast<double>(slope[i]) * tangent[i], size += std::abs(static_cast<double>(slope[i]) * tangent[i]);
    };
    add(gx, tx), add(gy, ty), add(gz, tz);
    wrong += std::abs(by_value - by_tables) > 100 * tolerance * (1e-30 + size);
  }
  for (size_t i = 0; i <= all.size() && n.a * n.d < 10; ++i)
    for (int64_t number : {-2, -1, 0, 1, 2, 3, 9, 1 << 30}) {  // refused, or an answer of the same sizes
      std::vector<int64_t> other(all.begin(), all.begin() + static_cast<int64_t>(number == -2 ? i : all.size()));
      if (i < other.size()) other[i] = number;
      ask(Question::kSum, other, tables, {buffer(value)});
      ask(Question::kSumTangent, other, joined(tables, {{buffer(exponents)}, first}), {buffer(moved)});
      ask(Question::kSumCotangent, other, joined(tables, {{buffer(exponents), buffer(bar)}, first}), slopes);
    }
  if (wrong) std::printf("ordinary sums, %s, type %d, %ld lanes, %ld %ld %ld %ld: %d wrong\n", kernels.name, (int)type, (long)lanes, (long)n.a, (long)n.b, (long)n.c, (long)n.d, wrong);
  return wrong;
}

// "ab,bc,ca->" by the steps 0,1:ac and 3,2: the best ways in order, and samples that are in range.
template <class T>
int check_many(const Kernels& kernels, Type type, std::mt19937& random, const Network& n) {
  std::vector<T> x(static_cast<size_t>(n.a * n.b)), y(static_cast<size_t>(n.b * n.c)), z(static_cast<size_t>(n.c * n.a)), sums, best(40), numbers(2 * 700);
  for (auto* table : {&x, &y, &z})
    for (T& entry : *table) entry = random() % 5 ? static_cast<T>(static_cast<int>(random() % 9) - 4) : -std::numeric_limits<T>::infinity();
  x[0] = y[0] = z[0] = T(0);
  for (T& number : numbers) number = static_cast<T>(random() % 1000) / 1000;
  const auto at = [&](int64_t i, int64_t j, int64_t k) { return x[static_cast<size_t>(i * n.b + j)] + y[static_cast<size_t>(j * n.c + k)] + z[static_cast<size_t>(k * n.a + i)]; };
  for (int64_t i = 0; i < n.a; ++i)
    for (int64_t j = 0; j < n.b; ++j)
      for (int64_t k = 0; k < n.c; ++k) sums.push_back(at(i, j, k));
  std::sort(sums.rbegin(), sums.rend());
  sums.resize(best.size(), -std::numeric_limits<T>::infinity());
  std::vector<int32_t> labels(3 * best.size()), drawn(3 * 700);
  const auto buffer = [](auto& v) { return Buffer{v.data(), static_cast<int64_t>(v.size())}; };
  const auto ask = [&](Question question, Algebra algebra, const std::vector<int64_t>& plan, std::vector<Buffer> in, std::vector<Buffer> out) {
    Threads pool;
    return answer(pool, {plan.data(), static_cast<int64_t>(plan.size()), type, algebra, question, 0.5, std::move(in), std::move(out)}, kernels);
  };
  const std::vector<int64_t> plan{3, 3, 2, 3, 0, 0, -1, n.a, n.b, n.c, 0, 1, 2, 2, 0, 1, 2, 1, 2, 2, 2, 0, 0, 1, 2, 0, 2, 3, 2, 0};
  int wrong = 0;
  wrong += !ask(Question::kBest, Algebra::kMaxPlus, plan, {buffer(x), buffer(y), buffer(z)}, {buffer(best), buffer(labels)}).empty();
  wrong += best != sums;
  for (size_t i = 0; i < best.size() && best[i] > -std::numeric_limits<T>::infinity(); ++i) wrong += at(labels[i], labels[best.size() + i], labels[2 * best.size() + i]) != best[i];
  wrong += !ask(Question::kSamples, Algebra::kLogSumExp, plan, {buffer(x), buffer(y), buffer(z), buffer(numbers)}, {buffer(drawn)}).empty();
  for (size_t i = 0; i < 700; ++i) wrong += !(at(drawn[i], drawn[700 + i], drawn[1400 + i]) > -std::numeric_limits<T>::infinity());
  for (size_t i = 0; i < plan.size(); ++i)
    for (int64_t number : {-1, 0, 1, 2, 3, 9, 1 << 30}) {  // refused, or an answer of the same sizes
      std::vector<int64_t> other = plan;
      other[i] = number;
      ask(Question::kBest, Algebra::kMaxPlus, other, {buffer(x), buffer(y), buffer(z)}, {buffer(best), buffer(labels)});
      ask(Question::kSamples, Algebra::kLogSumExp, other, {buffer(x), buffer(y), buffer(z), buffer(numbers)}, {buffer(drawn)});
    }
  if (wrong) std::printf("many assignments, %s, type %d, %ld %ld %ld: %d wrong\n", kernels.name, (int)type, (long)n.a, (long)n.b, (long)n.c, wrong);
  return wrong;
}

// Scores of alignments with one score for gaps, NaN and forbidden pairs among them, against a plain loop; their paths; and how much entries count
// under log-sum-exp: every node is left by one column.
template <class T>
int check_alignments(const Kernels& kernels, Type type, std::mt19937& random, int64_t m, int64_t n, int64_t band, int64_t rules) {
  constexpr int64_t batch = 3;
  const bool is_minimum = m % 2, warps = rules & 1, local = rules & 4, first_begin = rules & 8, first_end = rules & 16, second_begin = rules & 32, second_end = rules & 64;
  const T infinity = std::numeric_limits<T>::infinity(), sign = is_minimum ? T(-1) : T(1);
  std::vector<T> scores(static_cast<size_t>(batch * m * n)), gap(batch, T(-1) * sign), open(batch, T(-1) * sign), found(batch), counts(scores.size()), gaps(batch), opens(batch);
  std::vector<int32_t> path(static_cast<size_t>(2 * batch * (m + n))), lengths;
  for (int64_t i = 0; i < batch; ++i) lengths.push_back(static_cast<int32_t>(m - i % 2)), lengths.push_back(static_cast<int32_t>(n));
  for (T& x : scores) x = random() % 9 ? sign * static_cast<T>(static_cast<int>(random() % 7) - 3) : -sign * infinity;
  if (m * n > 5) scores[static_cast<size_t>(m * n) + 1] = std::numeric_limits<T>::quiet_NaN();  // in the second of the batch
  const auto ask = [&](Algebra algebra, std::vector<void*> results) {
    Threads pool;
    Alignments asked{};
    asked.batch = batch, asked.one.rows = m, asked.one.columns = n, asked.one.scores = scores.data(), asked.one.gap = gap.data(), asked.one.gap_open = open.data();
    asked.lengths = lengths.data(), asked.results = std::move(results);
    const std::string problem = fill(asked, static_cast<int64_t>(type), static_cast<int64_t>(algebra), 0.5, rules, band);
    if (problem.empty()) align(pool, asked, kernels);
    return problem.empty();
  };
  int wrong = !ask(is_minimum ? Algebra::kMinPlus : Algebra::kMaxPlus, {found.data(), path.data()});
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t rows = lengths[2 * b], columns = lengths[2 * b + 1];
    std::vector<T> h(static_cast<size_t>((rows + 1) * (columns + 1)), -infinity);
    T best = local ? T(0) : -infinity;
    bool has_nan = false;
    const auto at = [&](int64_t i, int64_t j) { return i < 0 || j < 0 ? -infinity : h[static_cast<size_t>(i * (columns + 1) + j)]; };
    for (int64_t i = 0; i <= rows; ++i)
      for (int64_t j = 0; j <= columns; ++j) {
        if (band >= 0 && std::abs(i - j) > band) continue;
        const T score = i && j ? sign * scores[static_cast<size_t>((b * m + i - 1) * n + j - 1)] : -infinity, added = warps ? score : T(-1);
        const T pair = score + (local ? std::max(T(0), at(i - 1, j - 1)) : at(i - 1, j - 1));
        has_nan |= pair != pair;
        // Warping repeats no element that is left out, nor one that is not there.
        const T first = warps && i == 1 ? -infinity : at(i - 1, j) + added, second = warps && j == 1 ? -infinity : at(i, j - 1) + added;
        T value = std::max({pair, first, second});
        if (!local && (i + j == 0 || (i == 0 && second_begin) || (j == 0 && first_begin))) value = 0;
        h[static_cast<size_t>(i * (columns + 1) + j)] = value;
        if (local) best = std::max(best, pair);
        if (!local && ((i == rows && (j == columns || second_end)) || (j == columns && first_end))) best = std::max(best, value);
      }
    if (!has_nan) wrong += found[b] != sign * best;
    for (int64_t k = 0; k < 2 * (m + n); ++k) wrong += path[static_cast<size_t>(2 * b * (m + n) + k)] < -1 || path[static_cast<size_t>(2 * b * (m + n) + k)] >= std::max(m, n);
  }
  wrong += !ask(Algebra::kLogSumExp, {found.data()});
  wrong += !ask(Algebra::kLogSumExp, {counts.data(), gaps.data(), opens.data()});
  for (int64_t b = 0; b < batch && !warps && !local && !is_minimum; b += 2) {  // each element is in a pair or in a gap, or left out
    if (!(found[b] > -infinity)) continue;
    double pairs = 0;
    for (int64_t k = 0; k < m * n; ++k) pairs += static_cast<double>(counts[static_cast<size_t>(b * m * n + k)]);
    const double elements = lengths[2 * b] + lengths[2 * b + 1];
    const double counted = 2 * pairs + static_cast<double>(gaps[b] + opens[b]);
    wrong += rules < 8 ? !(std::abs(counted - elements) < 1e-3 * elements) : !(counted > -1e-3 * elements && counted < 1.001 * elements);
  }
  lengths[1] = static_cast<int32_t>(n + 1), lengths[2] = -1;  // no alignment, and nothing read
  wrong += !ask(Algebra::kMaxPlus, {found.data(), path.data()}) + (found[0] != -infinity) + (found[1] != -infinity);
  wrong += !ask(Algebra::kLogSumExp, {counts.data(), gaps.data(), opens.data()}) + (gaps[0] != 0);
  wrong += ask(Algebra::kOrAnd, {found.data()}) + ask(Algebra::kMaxPlus, {}) + ask(Algebra::kMaxPlus, {counts.data(), gaps.data(), opens.data()});
  if (wrong) std::printf("alignments, %s, type %d, %ld x %ld, band %ld, rules %ld: %d wrong\n", kernels.name, (int)type, (long)m, (long)n, (long)band, (long)rules, wrong);
  return wrong;
}

// Alignments of symbols, two first sequences with one second: scores and paths of those of the scores of all pairs.
template <class T>
int check_symbols(const Kernels& kernels, Type type, std::mt19937& random, int64_t m, int64_t n, int64_t rules, int scale) {
  constexpr int64_t batch = 2, k = 4, l = 5;
  const bool is_minimum = m % 2, is_integer = std::is_integral_v<T>;
  const int sign = is_minimum ? -1 : 1;
  const double none = -sign * std::numeric_limits<double>::infinity();
  const T forbidden = is_integer ? (is_minimum ? std::numeric_limits<T>::max() : std::numeric_limits<T>::lowest()) : static_cast<T>(none);
  std::vector<int32_t> first(static_cast<size_t>(batch * m)), second(static_cast<size_t>(n)), lengths = {static_cast<int32_t>(m - m / 3), static_cast<int32_t>(n)};
  for (int32_t& x : first) x = static_cast<int32_t>(random() % k);
  for (size_t j = 0; j < second.size(); ++j) second[j] = random() % 4 ? first[j % first.size()] : static_cast<int32_t>(random() % l);
  std::vector<T> table(static_cast<size_t>(k * l)), found(batch);
  for (T& x : table) x = random() % 9 ? static_cast<T>(sign * scale * (static_cast<int>(random() % 8) - 3)) : forbidden;
  const int each = -static_cast<int>(random() % 2) * scale;
  const T gap = static_cast<T>(sign * each), open = static_cast<T>(sign * (each - static_cast<int>(random() % 9)));
  const size_t room = static_cast<size_t>(2 * (m + n));
  std::vector<int32_t> path(batch * room), wanted(room);
  Threads pool;
  SymbolAlignments asked{};
  asked.one.rows = m, asked.one.columns = n, asked.kinds[0] = k, asked.kinds[1] = l;
  asked.batch = {{batch}, {{1}, {0}, {0}, {0}, {0}, {0}}};
  const void* const inputs[] = {first.data(), second.data(), table.data(), &gap, &open, lengths.data()};
  std::copy(std::begin(inputs), std::end(inputs), asked.inputs);
  asked.results = {found.data(), path.data()};
  const int64_t algebra = static_cast<int64_t>(is_minimum ? Algebra::kMinPlus : Algebra::kMaxPlus);
  int wrong = !fill(asked, static_cast<int64_t>(type), algebra, 1, rules, -1).empty();
  align_symbols(pool, asked, kernels);
  for (size_t b = 0; b < batch; ++b) {
    std::vector<double> scores(static_cast<size_t>(m * n));
    for (size_t i = 0; i < scores.size(); ++i) {
      const size_t row = i / second.size(), column = i % second.size();
      const T score = table[static_cast<size_t>(first[b * static_cast<size_t>(m) + row] * l + second[column])];
      scores[i] = score == forbidden ? none : static_cast<double>(score);
    }
    const double gaps[] = {static_cast<double>(gap), static_cast<double>(open)};
    double want = 0;
    Alignments all{};
    all.batch = 1, all.one.rows = m, all.one.columns = n, all.one.scores = scores.data(), all.one.gap = gaps, all.one.gap_open = gaps + 1;
    all.lengths = lengths.data(), all.results = {&want, wanted.data()};
    wrong += !fill(all, 1, algebra, 1, rules, -1).empty();
    align(pool, all, kernels);
    wrong += (want == none ? found[b] != forbidden : static_cast<double>(found[b]) != want) + !std::equal(wanted.begin(), wanted.end(), path.begin() + static_cast<int64_t>(b * room));
  }
  first[0] = k, lengths[1] = -1;  // of no kind, which is not read
  wrong += !fill(asked, static_cast<int64_t>(type), algebra, 1, rules, -1).empty();
  align_symbols(pool, asked, kernels);
  wrong += found[0] != forbidden || path[0] != -1;
  wrong += fill(asked, static_cast<int64_t>(type), algebra, 1, 1, -1).empty() + fill(asked, static_cast<int64_t>(type), algebra, 1, rules, 3).empty();
  if (wrong) std::printf("symbols, %s, type %d, %ld x %ld, rules %ld, scale %d: %d wrong\n", kernels.name, (int)type, (long)m, (long)n, (long)rules, scale, wrong);
  return wrong;
}

int check_networks(const Kernels& kernels, std::mt19937& random) {
  int wrong = 0;
  for (const Network& n : {Network{1, 1, 1, 1}, Network{2, 3, 4, 5}, Network{3, 600, 2, 7}, Network{40, 20, 50, 30}, Network{2, 2, 700, 1}, Network{70, 33, 90, 2}}) {
    for (Algebra algebra : {Algebra::kMaxPlus, Algebra::kMinPlus, Algebra::kMaxMul, Algebra::kMinMax, Algebra::kLogSumExp}) {
      wrong += check_network<float>(kernels, algebra, Type::kF32, random, n, n.d == 5);
      wrong += check_network<double>(kernels, algebra, Type::kF64, random, n, n.d == 5);
      if (algebra != Algebra::kLogSumExp) wrong += check_network<int32_t>(kernels, algebra, Type::kI32, random, n, n.d == 5);
    }
    wrong += check_network<uint8_t>(kernels, Algebra::kOrAnd, Type::kBool, random, n, n.d == 5);
    for (int64_t lanes : {-1, 0, 1}) wrong += check_ordinary_sums<float>(kernels, Type::kF32, random, n, lanes) + check_ordinary_sums<double>(kernels, Type::kF64, random, n, lanes);
    if (n.d != 7) wrong += check_many<float>(kernels, Type::kF32, random, n) + check_many<double>(kernels, Type::kF64, random, n);
  }
  return wrong;
}

// One or two chains: the score against the recurrence over times; a path by its score, others by their order, and shares by their sums.
template <class T>
int check_chains(const Kernels& kernels, Type type, std::mt19937& random, Algebra algebra, int64_t states, int64_t steps, int64_t band, bool special) {
  const bool is_log = algebra == Algebra::kLogSumExp, is_minimum = algebra == Algebra::kMinPlus || algebra == Algebra::kMinMax;
  const double none = algebra == Algebra::kMaxMul ? 0 : is_minimum ? INFINITY : -INFINITY;
  const int64_t rows = steps > 1 && random() % 2 ? steps - 1 : 1, reach = band ? band : states, emitted = random() % 2 ? states : 2, samples = 2;
  const auto numbers = [&](int64_t count) {
    std::vector<T> found(static_cast<size_t>(count));
    for (T& x : found) x = special && random() % 4 == 0 ? static_cast<T>(none) : static_cast<T>(algebra == Algebra::kMaxMul ? (random() % 3 ? 1.0 : 0.75) : static_cast<double>(random() % 9) - 4);
    return found;
  };
  const auto initial = numbers(2 * states), transition = numbers(rows * reach * states), emission = numbers(2 * steps * emitted);
  std::vector<T> uniforms(static_cast<size_t>(2 * samples * steps));
  for (T& x : uniforms) x = static_cast<T>(random() % 1000) / 1000;
  const int32_t length[2] = {static_cast<int32_t>(1 + random() % static_cast<uint64_t>(steps)), static_cast<int32_t>(random() % static_cast<uint64_t>(steps + 2))};
  std::vector<int32_t> columns(static_cast<size_t>(states));
  for (int32_t& x : columns) x = static_cast<int32_t>(random() % static_cast<uint64_t>(emitted));
  const bool has_columns = emitted != states;
  const int64_t chains = 1 + static_cast<int64_t>(random() % 2);
  int wrong = 0;
  for (int64_t asks = 0; asks < (is_log ? 3 + (band > 0) : 2); ++asks) {
    const bool has_shares = is_log && asks % 2;
    const int64_t k = asks == 1 && !is_log ? static_cast<int64_t>(random() % 5) : 0, paths = k ? k : 1;
    std::vector<T> score(static_cast<size_t>(2 * paths)), d_initial(static_cast<size_t>(2 * states)), d_transition(static_cast<size_t>(2 * rows * reach * states)), d_emission(static_cast<size_t>(2 * steps * emitted));
    std::vector<int32_t> path(static_cast<size_t>(2 * (asks == 2 ? samples : paths) * steps));
    Chains asked{};
    asked.one.type = type, asked.one.algebra = algebra, asked.one.states = states, asked.one.steps = steps, asked.one.rows = rows, asked.one.band = band, asked.one.k = k;
    asked.asks = asks, asked.memory = random() % 2 ? 0 : 1 << 20, asked.emitted = emitted, asked.batch = {chains};
    const void* const given[] = {initial.data(), transition.data(), emission.data(), length, has_columns ? columns.data() : nullptr, asks == 2 ? uniforms.data() : nullptr};
    for (size_t i = 0; i < Chains::kInputs; ++i) asked.inputs[i] = given[i], asked.strides[i] = {i != Chains::kTransition && i != Chains::kColumns};
    if (asks == 2) asked.one.samples = samples, asked.results = {path.data()};
    else asked.results = {score.data()};
    if (asks == 1 && is_log) asked.results = {score.data(), d_initial.data(), d_transition.data(), d_emission.data()};
    if (asks == 3) asked.results = {score.data(), nullptr, nullptr, d_emission.data()};
    if (asks == 1 && !is_log) asked.results = {score.data(), path.data()};
    wrong += !problem_of(asked).empty();
    Threads pool;
    run_chains(pool, asked, kernels);
    for (int64_t b = 0; b < chains; ++b) {
      const auto seen = [&](int64_t t, int64_t j) { return static_cast<double>(emission[static_cast<size_t>((b * steps + t) * emitted + (has_columns ? columns[static_cast<size_t>(j)] : j))]); };
      const auto moved = [&](int64_t t, int64_t i, int64_t j) {
        if (band && (j < i || j - i >= band)) return none;
        return static_cast<double>(transition[static_cast<size_t>(((rows > 1 ? t : 0) * reach + (band ? j - i : i)) * states + j)]);
      };
      const auto both = [&](double x, double y) { return algebra == Algebra::kMaxMul ? x * y : algebra == Algebra::kMinMax ? std::max(x, y) : x + y; };
      const auto better = [&](double x, double y) { return !is_log ? (is_minimum ? std::min(x, y) : std::max(x, y)) : x == none ? y : y == none ? x : std::max(x, y) + std::log1p(std::exp(-std::fabs(x - y))); };
      const bool is_there = length[b] >= 1 && length[b] <= steps;
      std::vector<double> now(static_cast<size_t>(states), none);
      for (int64_t t = 0; is_there && t < length[b]; ++t) {
        std::vector<double> next(now.size(), none);
        for (int64_t j = 0; j < states; ++j) {
          if (t == 0) next[static_cast<size_t>(j)] = static_cast<double>(initial[static_cast<size_t>(b * states + j)]);
          for (int64_t i = 0; t && i < states; ++i) next[static_cast<size_t>(j)] = better(next[static_cast<size_t>(j)], both(now[static_cast<size_t>(i)], moved(t - 1, i, j)));
          next[static_cast<size_t>(j)] = both(next[static_cast<size_t>(j)], seen(t, j));
        }
        now = next;
      }
      double want = none;
      for (double x : now) want = better(want, x);
      const auto close = [](double x, double y) { return x == y || std::fabs(x - y) < 1e-4 * (1 + std::fabs(y)); };
      if (asks != 2) wrong += !close(static_cast<double>(score[static_cast<size_t>(b * paths)]), want);
      const int32_t* const states_of = path.data() + b * paths * steps;
      if (asks == 1 && !is_log) {
        double own = want == none ? none : both(static_cast<double>(initial[static_cast<size_t>(b * states + states_of[0])]), seen(0, states_of[0]));
        for (int64_t t = 1; want != none && t < length[b]; ++t) own = both(both(own, moved(t - 1, states_of[t - 1], states_of[t])), seen(t, states_of[t]));
        wrong += !close(own, want);
      }
      for (int64_t r = 1; r < k; ++r) wrong += better(static_cast<double>(score[static_cast<size_t>(b * k + r - 1)]), static_cast<double>(score[static_cast<size_t>(b * k + r)])) != static_cast<double>(score[static_cast<size_t>(b * k + r - 1)]);
      double shares = 0;
      for (int64_t i = 0; i < steps * emitted; ++i) shares += static_cast<double>(d_emission[static_cast<size_t>(b * steps * emitted + i)]);
      if (has_shares) wrong += !close(shares, want == none ? 0 : length[b]);
      for (int64_t n = 0; asks == 2 && n < samples; ++n) wrong += (path[static_cast<size_t>((b * samples + n) * steps)] < 0) != (want == none);
    }
  }
  return wrong;
}

// One or two chains with durations: the score against the recurrence over times and ages; a path and samples where there are some, and shares
// by their sums.
template <class T>
int check_durations(const Kernels& kernels, Type type, std::mt19937& random, Algebra algebra, int64_t states, int64_t steps, int64_t longest, bool special) {
  const bool is_log = algebra == Algebra::kLogSumExp;
  const double sign = algebra == Algebra::kMinPlus ? -1 : 1;
  const int64_t rows = steps > 1 && random() % 2 ? steps - 1 : 1, is_cut = static_cast<int64_t>(random() % 2), batch = 1 + static_cast<int64_t>(random() % 2), samples = 2;
  const auto numbers = [&](int64_t count) {
    std::vector<T> found(static_cast<size_t>(count));
    for (T& x : found) x = special && random() % 4 == 0 ? static_cast<T>(-sign * (random() % 2 ? INFINITY : 1e30)) : static_cast<T>(static_cast<double>(random() % 9) - 4);
    return found;
  };
  const auto initial = numbers(batch * states), transition = numbers(batch * rows * states * states), durations = numbers(batch * states * longest), emission = numbers(batch * steps * states);
  std::vector<T> uniforms(static_cast<size_t>(2 * batch * samples * steps));
  for (T& x : uniforms) x = static_cast<T>(random() % 1000) / 1000;
  const int32_t length[2] = {static_cast<int32_t>(1 + random() % static_cast<uint64_t>(steps)), static_cast<int32_t>(random() % static_cast<uint64_t>(steps + 2))};
  const auto join = [&](double x, double y) {
    const double most = std::max(x, y);
    return !is_log || most == -INFINITY ? most : most + std::log(std::exp(x - most) + std::exp(y - most));
  };
  int wrong = 0;
  for (int64_t asks = 0; asks < (is_log ? 3 : 2); ++asks) {
    std::vector<T> score(2), d_initial(initial.size()), d_transition(transition.size()), d_durations(durations.size()), d_emission(emission.size());
    std::vector<int32_t> path(static_cast<size_t>(batch * samples * steps));
    ManyDurations asked{};
    asked.asks = asks, asked.batch = batch;
    asked.one.states = states, asked.one.steps = steps, asked.one.rows = rows, asked.one.longest = longest, asked.one.samples = asks == 2 ? samples : 0;
    const void* const given[] = {initial.data(), transition.data(), durations.data(), emission.data(), length, asks == 2 ? uniforms.data() : nullptr};
    std::copy(std::begin(given), std::end(given), asked.inputs);
    if (asks == 2) asked.results = {path.data()};
    else if (asks == 1 && is_log) asked.results = {score.data(), d_initial.data(), d_transition.data(), d_durations.data(), d_emission.data()};
    else if (asks == 1) asked.results = {score.data(), path.data()};
    else asked.results = {score.data()};
    wrong += !fill(asked, static_cast<int64_t>(type), static_cast<int64_t>(algebra), is_cut).empty();
    Threads pool;
    run_durations(pool, asked, kernels);
    for (int64_t b = 0; b < batch; ++b) {
      const auto at = [&](const std::vector<T>& array, int64_t i) { return sign * static_cast<double>(array[static_cast<size_t>(b * static_cast<int64_t>(array.size()) / batch + i)]); };
      const bool is_there = length[b] >= 1 && length[b] <= steps;
      std::vector<double> ages(static_cast<size_t>(states * longest), -INFINITY), ends(static_cast<size_t>(states));
      double want = -INFINITY;
      for (int64_t t = 0; is_there && t < length[b]; ++t) {
        const std::vector<double> before = ends;
        for (int64_t j = 0; j < states; ++j) {
          double start = t ? -INFINITY : at(initial, j), end = -INFINITY, tail = -INFINITY;
          for (int64_t i = 0; t && i < states; ++i)
            if (i != j) start = join(start, before[static_cast<size_t>(i)] + at(transition, ((rows > 1 ? t - 1 : 0) * states + i) * states + j));
          double* const age = ages.data() + j * longest;
          for (int64_t d = longest - 1; d > 0; --d) age[d] = age[d - 1] + at(emission, t * states + j);
          age[0] = start + at(emission, t * states + j);
          for (int64_t d = longest - 1; d >= 0; --d) {
            tail = is_cut && t == length[b] - 1 ? join(tail, at(durations, j * longest + d)) : at(durations, j * longest + d);
            end = join(end, age[d] + tail);
          }
          ends[static_cast<size_t>(j)] = end;
          if (t == length[b] - 1) want = join(want, end);
        }
      }
      const auto close = [](double x, double y) { return x == y || std::fabs(x - y) < 1e-4 * (1 + std::fabs(y)); };
      if (asks != 2) wrong += !close(sign * static_cast<double>(score[static_cast<size_t>(b)]), want);
      const bool is_none = want == -INFINITY;
      const int64_t paths = asks == 2 ? samples : asks == 1 && !is_log;
      for (int64_t i = 0; i < paths; ++i) wrong += (path[static_cast<size_t>((b * paths + i) * steps)] < 0) != is_none;
      double shares = 0;
      for (int64_t i = 0; i < steps * states; ++i) shares += at(d_emission, i);
      if (asks == 1 && is_log) wrong += !close(shares, is_none ? 0 : length[b]) && !(std::isnan(shares) && std::fabs(want) > 1e11);
    }
  }
  return wrong;
}

// Three graphs at once, edges also from and to what is no node: values by relaxing all edges, and the sums of ones along trees by their lengths;
// then trees of any numbers.
template <class T>
int check_paths(Type type, std::mt19937& random, int64_t nodes, int64_t edges, bool greatest, bool special) {
  const bool is_integer = type == Type::kI32;
  const T none = is_integer ? std::numeric_limits<T>::max() : std::numeric_limits<T>::infinity(), least = is_integer ? std::numeric_limits<T>::min() : -std::numeric_limits<T>::infinity();
  const int64_t sources = 2, batch = 3;
  const auto numbers = [&](int64_t count, int64_t most) {
    std::vector<int32_t> found(static_cast<size_t>(count));
    for (int32_t& x : found) x = static_cast<int32_t>(random() % static_cast<uint64_t>(most + 1)) - (random() % 9 == 0);
    return found;
  };
  auto senders = numbers(edges, nodes), given = numbers(batch * sources, nodes), targets = numbers(random() % 2 * 2, nodes);
  const auto receivers = numbers(edges, nodes);
  if (random() % 2) std::sort(senders.begin(), senders.end());
  std::vector<T> weights(static_cast<size_t>(batch * edges)), values(static_cast<size_t>(batch * sources * nodes));
  for (T& x : weights) x = static_cast<T>(static_cast<int64_t>(random() % 6) - (special ? 1 : 0));
  for (T& x : weights)
    if (special && random() % 8 == 0) x = random() % 2 || is_integer ? none : static_cast<T>(NAN);
  std::vector<int32_t> last(values.size());
  Paths asked{type, greatest ? Algebra::kMinMax : Algebra::kMinPlus, nodes, edges, sources, static_cast<int64_t>(targets.size()), {senders.data(), receivers.data(), weights.data(), given.data(), targets.data()}, values.data(), last.data(), {{batch}, {{0}, {0}, {1}, {1}, {0}}}};
  Threads pool;
  int wrong = !run_paths(pool, asked).empty();
  const auto is_node = [&](int32_t v) { return v >= 0 && v < nodes; };
  for (int64_t i = 0; i < batch * sources; ++i) {
    const T* const w = weights.data() + i / sources * edges;
    bool has_nan = false;
    for (int64_t e = 0; e < edges; ++e) has_nan |= w[e] != w[e];
    std::vector<T> now(static_cast<size_t>(nodes), none);
    if (is_node(given[static_cast<size_t>(i)])) now[static_cast<size_t>(given[static_cast<size_t>(i)])] = greatest ? least : T(0);
    for (int64_t turn = 0; turn < 3 * nodes; ++turn)
      for (size_t e = 0; e < static_cast<size_t>(edges); ++e) {
        if (!is_node(senders[e]) || !is_node(receivers[e]) || w[e] == none || w[e] != w[e]) continue;
        const T from = now[static_cast<size_t>(senders[e])];
        T& to = now[static_cast<size_t>(receivers[e])];
        if (from == none) continue;
        const T value = greatest ? std::max(from, w[e]) : from == least ? least : static_cast<T>(from + w[e]);
        if (value < to) to = turn > nodes && !greatest ? least : value;
      }
    for (int64_t v = 0; targets.empty() && !has_nan && v < nodes; ++v) wrong += values[static_cast<size_t>(i * nodes + v)] != now[static_cast<size_t>(v)];
  }
  if constexpr (std::is_floating_point_v<T>) {
    for (int turn = 0; turn < 2; ++turn) {
      if (turn) last = numbers(batch * sources * nodes, edges - 1);
      if (turn) senders = numbers(edges, nodes - 1);
      const bool is_sound = !turn || std::all_of(senders.begin(), senders.end(), is_node);
      std::vector<T> ones(static_cast<size_t>(edges), T(1)), lengths(last.size()), all(last.size(), T(1)), uses(static_cast<size_t>(batch * edges));
      TreeSums along{type, false, nodes, edges, sources, {last.data(), senders.data(), ones.data()}, lengths.data(), {{batch}, {{1}, {0}, {0}}}};
      TreeSums onto{type, true, nodes, edges, sources, {last.data(), senders.data(), all.data()}, uses.data(), {{batch}, {{1}, {0}, {1}}}};
      const bool failed = !run_tree_sums(pool, along).empty() | !run_tree_sums(pool, onto).empty();
      wrong += failed && is_sound;
      double length = 0, use = 0;  // the sum over nodes of the edges of their paths, and over edges of the nodes whose path takes them
      for (T x : lengths) length += static_cast<double>(x);
      for (T x : uses) use += static_cast<double>(x);
      wrong += !failed && length != use;
    }
  }
  return wrong;
}

// The best assignment of a network whose best score is known: as it is, by choices alone, with larger tables, and with little work.
int check_optimum(const std::vector<int64_t>& graph, const std::vector<const double*>& data, double best, int form) {
  constexpr double kAll = std::numeric_limits<double>::infinity();
  const double limits[][8] = {{16, 4096, 100, 100, 3e8, 6e8, 1e11, 5e8}, {kAll, 4096, 100, 100, 3e8, 6e8, 0, 0}, {1, 1, 0, 0, 0, 6e8, 0, 0}, {1, 64, 0, 0, 0, 6e8, 0, 0}, {1, 1, 0, 0, 0, 500, 0, 0}};
  int wrong = 0;
  for (const double* asked_limits : limits) {
    std::vector<int32_t> labels(graph[0]);
    std::vector<uint8_t> undecided(graph[0]);
    double numbers[4];
    const OptimumAsked asked{graph.data(), static_cast<int64_t>(graph.size()), data.data(), form % 2 == 1, 1e-9, asked_limits, labels.data(), undecided.data(), numbers};
    if (!run_optimum(asked).empty()) return 1;
    const double upper = numbers[kUpper], lower = numbers[kLower];
    wrong += !(best <= upper + 1e-9 && lower <= best + 1e-9);
    wrong += asked_limits[5] > 500 && !(lower == upper || upper - lower < 1e-8);
  }
  return wrong;
}

// The k shortest paths against all paths that pass no node twice; edges also from and to what is no node, and edges that are none.
template <class T>
int check_ranked_paths(Type type, std::mt19937& random, int32_t nodes, int64_t edges, int64_t count) {
  std::vector<int32_t> senders(static_cast<size_t>(edges)), receivers(senders.size());
  std::vector<T> weights(senders.size());
  for (std::vector<int32_t>* ends : {&senders, &receivers})
    for (int32_t& x : *ends) x = static_cast<int32_t>(random() % static_cast<uint64_t>(nodes + 1)) - (random() % 9 == 0);
  for (T& x : weights) x = random() % 12 ? static_cast<T>(random() % 4) : std::numeric_limits<T>::infinity();
  const int32_t source = static_cast<int32_t>(random() % static_cast<uint64_t>(nodes)), target = static_cast<int32_t>(random() % static_cast<uint64_t>(nodes));
  std::vector<double> want, lengths(static_cast<size_t>(count));
  std::vector<char> is_passed(static_cast<size_t>(nodes), 0);
  const std::function<void(int32_t, double)> go_on = [&](int32_t node, double length) {
    if (node == target) return want.push_back(length);
    is_passed[static_cast<size_t>(node)] = 1;
    for (size_t e = 0; e < senders.size(); ++e) {
      const int32_t next = receivers[e];
      if (senders[e] == node && next >= 0 && next < nodes && !is_passed[static_cast<size_t>(next)] && std::isfinite(weights[e])) go_on(next, length + static_cast<double>(weights[e]));
    }
    is_passed[static_cast<size_t>(node)] = 0;
  };
  go_on(source, 0);
  std::sort(want.begin(), want.end());
  want.resize(static_cast<size_t>(count), std::numeric_limits<double>::infinity());
  std::vector<int32_t> numbers(static_cast<size_t>(count * (nodes - 1))), passed(static_cast<size_t>(count));
  Threads pool;
  const RankedPaths asked{type, nodes, edges, source, target, count, senders.data(), receivers.data(), weights.data(), lengths.data(), numbers.data(), passed.data()};
  int wrong = !run_ranked_paths(pool, asked).empty();
  for (size_t i = 0; i < want.size(); ++i) {
    double length = passed[i] ? 0 : std::numeric_limits<double>::infinity();
    int32_t node = source;
    for (int32_t j = 0; j + 1 < passed[i]; ++j) {
      const size_t e = static_cast<size_t>(numbers[i * static_cast<size_t>(nodes - 1) + static_cast<size_t>(j)]);
      wrong += senders[e] != node;
      node = receivers[e], length += static_cast<double>(weights[e]);
    }
    wrong += lengths[i] != want[i] || length != want[i] || (passed[i] && node != target);
  }
  return wrong;
}

// Whether the bound with a derivative is at least the best score; its derivative has the sum 1 in each table, and gives the bound back.
bool is_bound(std::mt19937& random, const std::vector<int64_t>& graph, const std::vector<const double*>& tables, double best) {
  Structure s;
  if (!read_structure(graph.data(), static_cast<int64_t>(graph.size()), s).empty()) return false;
  double bound = 0, again = 0;
  std::vector<double> shares(s.entries), copies(s.entries);
  Threads pool;
  NetworkBound asked{Type::kF64, &s, 1 + static_cast<int64_t>(random() % 12), {tables.begin(), tables.end()}, &bound, shares.data(), {}};
  asked.batch.strides.resize(tables.size());
  if (!run_network_bound(pool, asked).empty() || !(best <= bound + 1e-9)) return false;
  if (std::isinf(bound)) return true;
  TablesDot dot{Type::kF64, false, {}, shares.data(), {}, {&again}, {}}, back{Type::kF64, true, {}, shares.data(), {&bound}, {}, {}};
  std::vector<double> finite;
  for (const Factor& t : s.tables)
    for (int64_t i = 0; i < t.count; ++i) finite.push_back(std::max(tables[&t - s.tables.data()][i], -1e6));
  for (const Factor& t : s.tables) {
    double sum = 0;
    for (int64_t i = 0; i < t.count; ++i) sum += shares[t.start + i];
    if (std::fabs(sum - 1) > 1e-9) return false;
    dot.counts.push_back(t.count);
    dot.inputs.push_back(finite.data() + t.start);
    back.results.push_back(copies.data() + t.start);
  }
  back.counts = dot.counts;
  dot.batch.strides.resize(1 + tables.size());
  back.batch.strides.resize(2);
  if (!run_tables_dot(pool, dot).empty() || !run_tables_dot(pool, back).empty()) return false;
  for (int64_t i = 0; i < s.entries; ++i)
    if (copies[i] != shares[i] * bound) return false;
  return std::fabs(again - bound) < 1e-6;
}

// Bounds of a small network against all of its assignments; with impossible entries and ties.
int check_bounds(std::mt19937& random, int64_t variables, int64_t tables, int form) {
  std::vector<int64_t> sizes(variables), graph{variables, tables};
  for (int64_t& size : sizes) size = 1 + random() % 4;
  graph.insert(graph.end(), sizes.begin(), sizes.end());
  std::vector<std::vector<int64_t>> scopes(tables);
  std::vector<std::vector<double>> entries(tables);
  int64_t messages = 0, values = 0;
  for (int64_t size : sizes) values += size;
  for (int64_t f = 0; f < tables; ++f) {
    for (int64_t v = 0; v < variables; ++v)
      if (random() % 3 == 0 && scopes[f].size() < 4) scopes[f].push_back(v);
    std::shuffle(scopes[f].begin(), scopes[f].end(), random);
    graph.push_back(static_cast<int64_t>(scopes[f].size()));
    graph.insert(graph.end(), scopes[f].begin(), scopes[f].end());
    int64_t count = 1;
    for (int64_t v : scopes[f]) {
      count *= sizes[v];
      if (scopes[f].size() > 1) messages += sizes[v];
    }
    for (int64_t i = 0; i < count; ++i)
      entries[f].push_back(form % 3 == 0 && random() % 3 == 0 ? -std::numeric_limits<double>::infinity() : static_cast<double>(random() % 7) / (form % 2 ? 1 : 7));
  }
  std::vector<const double*> data;
  for (const auto& table : entries) data.push_back(table.data());
  std::vector<double> message(messages), uppers(values, std::numeric_limits<double>::infinity()), numbers(kBoundsNumbers);
  std::vector<int32_t> labels(variables, -1);
  const BoundsAsked asked{graph.data(), static_cast<int64_t>(graph.size()), data.data(), 1 + static_cast<int64_t>(random() % 12), static_cast<int64_t>(random() % 4), form, 1e-9,
                          message.data(), labels.data(), uppers.data(), numbers.data()};
  if (!run_bounds(asked).empty()) return 1;
  double best = -std::numeric_limits<double>::infinity(), own = best;
  std::vector<int64_t> at(variables);
  for (bool more = true; more;) {
    double score = 0;
    bool is_own = true;
    for (int64_t f = 0; f < tables; ++f) {
      int64_t place = 0;
      for (int64_t v : scopes[f]) place = place * sizes[v] + at[v];
      score += entries[f][place];
    }
    for (int64_t v = 0; v < variables; ++v) is_own &= at[v] == labels[v];
    best = std::max(best, score);
    if (is_own) own = score;
    int64_t start = values;
    for (int64_t v = variables; v-- > 0;) {
      start -= sizes[v];
      if (score > uppers[start + at[v]] + 1e-9) return 1;
    }
    more = false;
    for (int64_t v = variables; v-- > 0 && !more;) {
      more = ++at[v] < sizes[v];
      if (!more) at[v] = 0;
    }
  }
  if (!is_bound(random, graph, data, best)) return 1;
  const bool is_lower = numbers[1] == own || std::fabs(numbers[1] - own) < 1e-9;
  if (!(best <= numbers[0] + 1e-9 && numbers[1] <= best + 1e-9 && is_lower)) return 1;
  return form % 5 == 0 ? check_optimum(graph, data, best, form) : 0;
}

int main() {
  const int64_t sizes[][4] = {{1, 1, 1, 1}, {1, 31, 1, 5}, {2, 33, 7, 49}, {1, 128, 8, 48}, {3, 129, 17, 31}, {1, 300, 70, 100}, {1, 64, 300, 2}, {1, 5, 3, 500}, {2, 1100, 9, 20}, {1, 600, 33, 35}, {1, 4, 130, 70}, {1, 17000, 1, 2}, {1, 90, 3, 150}};
  std::atomic<int> wrong{0}, cases{0};
  const auto check_forms = [&](const Kernels& k, Algebra algebra, const int64_t (&size)[4], std::mt19937& random) {
    for (int form = 0; form < 4; ++form, cases += 6) {
      wrong += check<float>(k, algebra, Type::kF32, random, size, form & 1, form & 2);
      wrong += check<double>(k, algebra, Type::kF64, random, size, form & 1, form & 2);
      wrong += check<int32_t>(k, algebra, Type::kI32, random, size, form & 1, form & 2);
      wrong += check<uint8_t>(k, Algebra::kOrAnd, Type::kBool, random, size, form & 1, form & 2);
      wrong += check_sums<float>(Type::kF32, random, size, form & 1, form & 2);
      wrong += check_sums<double>(Type::kF64, random, size, form & 1, form & 2);
    }
  };
  const Algebra numbers[] = {Algebra::kMaxPlus, Algebra::kMinPlus, Algebra::kMaxMul, Algebra::kMinMax};
  std::mt19937 random(1);
  for (const Kernels& k : kernels())
    for (Algebra algebra : numbers)
      for (const auto& size : sizes)  // on a thread of its own, whose scratch is no larger than is needed: what is read outside is seen
        std::thread([&] { check_forms(k, algebra, size, random); }).join();
  std::vector<std::thread> callers;
  for (unsigned seed = 0; seed < 4; ++seed)
    callers.emplace_back([&, seed] {
      std::mt19937 own(seed);
      for (int call = 0; call < 8; ++call) check_forms(kernels().back(), numbers[own() % std::size(numbers)], sizes[own() % std::size(sizes)], own);
    });
  for (std::thread& caller : callers) caller.join();
  for (const Kernels& k : kernels()) wrong += check_networks(k, random), cases += 1;
  const int64_t pairs[][2] = {{1, 1}, {1, 40}, {40, 1}, {15, 16}, {63, 64}, {64, 63}, {129, 70}, {70, 200}};
  for (const Kernels& k : kernels())
    for (const auto& pair : pairs)
      for (int64_t band : {-1, 0, 2, 70})
        for (int64_t number = 0; number < 8; ++number) {
          const int64_t forms[] = {0, 1, 2, 4, 6}, rules = number < 5 ? forms[number] : forms[number - 5] + 8 * (1 + static_cast<int64_t>(random() % 15));
          wrong += check_alignments<float>(k, Type::kF32, random, pair[0], pair[1], band, rules);
          wrong += check_alignments<double>(k, Type::kF64, random, pair[0], pair[1], band, rules);
          cases += 2;
        }
  for (const Kernels& k : kernels())
    for (const auto& pair : pairs)
      for (int scale : {1, 9, 70, 3000})
        for (int64_t number = 0; number < 12; ++number, cases += 3) {
          const int64_t rules = number < 4 ? 2 * number : 2 * (number % 2) + 8 * (1 + static_cast<int64_t>(random() % 15));
          const int64_t times = number % 3 == 0 ? 7 : 1;
          wrong += check_symbols<float>(k, Type::kF32, random, pair[0] * times, pair[1] * times, rules, scale);
          wrong += check_symbols<double>(k, Type::kF64, random, pair[0], pair[1] * times, rules, scale);
          wrong += check_symbols<int32_t>(k, Type::kI32, random, pair[0] * times, pair[1], rules, scale);
        }
  for (const Kernels& k : kernels())
    for (Algebra algebra : {Algebra::kMaxPlus, Algebra::kMinPlus, Algebra::kMaxMul, Algebra::kMinMax, Algebra::kLogSumExp})
      for (int64_t states : {1, 3, 8, 15, 17, 33, 70})
        for (int64_t steps : {1, 2, 9, 70, 150})
          for (int64_t band : {0, 1, 3, 6}) {
            if (band > states) continue;
            wrong += check_chains<float>(k, Type::kF32, random, algebra, states, steps, band, random() % 2);
            wrong += check_chains<double>(k, Type::kF64, random, algebra, states, steps, band, random() % 2);
            cases += 2;
          }
  for (const Kernels& k : kernels())
    for (int form = 0; form < 12; ++form, cases += 2) {  // some of them are long enough for two threads
      wrong += check_chains<float>(k, Type::kF32, random, Algebra::kLogSumExp, 3, 40000, 0, form % 3 == 0);
      wrong += check_chains<double>(k, Type::kF64, random, Algebra::kLogSumExp, 3, 40000, 0, form % 3 == 0);
    }
  for (const Kernels& k : kernels())
    for (Algebra algebra : {Algebra::kMaxPlus, Algebra::kMinPlus, Algebra::kLogSumExp})
      for (int64_t states : {1, 3, 8, 17})
        for (int64_t steps : {1, 2, 70, 700})
          for (int64_t longest : {1, 5, 33, 600}) {
            wrong += check_durations<float>(k, Type::kF32, random, algebra, states, steps, longest, random() % 2);
            wrong += check_durations<double>(k, Type::kF64, random, algebra, states, steps, longest, random() % 2);
            cases += 2;
          }
  const int64_t graphs[][2] = {{1, 1}, {1, 4}, {7, 20}, {40, 90}, {300, 900}, {300, 400}};
  for (const auto& graph : graphs)
    for (int form = 0; form < 80; ++form) {
      wrong += check_paths<float>(Type::kF32, random, graph[0], graph[1], form & 1, form & 2);
      wrong += check_paths<double>(Type::kF64, random, graph[0], graph[1], form & 1, form & 2);
      wrong += check_paths<int32_t>(Type::kI32, random, graph[0], graph[1], form & 1, form & 2);
      cases += 3;
    }
  for (int form = 0; form < 1000; ++form, cases += 2) {
    wrong += check_ranked_paths<float>(Type::kF32, random, 1 + form % 7, form % 17, form % 15);
    wrong += check_ranked_paths<double>(Type::kF64, random, 1 + form % 7, form % 17, form % 15);
  }
  for (int form = 0; form < 2000; ++form, ++cases) wrong += check_bounds(random, 1 + form % 6, 1 + form % 11, form);
  std::printf("%d cases, %d wrong cells\n", cases.load(), wrong.load());
  return wrong != 0;
}
