// A plan read from integers: each step as strides, a list of axes for its cells and one for its candidates.
#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <stdexcept>
#include <vector>

#include "network.h"

namespace tropical::plans {

constexpr int64_t kRun = 512;                         // the most entries of a run

[[noreturn]] inline void refuse(const char* what) { throw std::invalid_argument(what); }

inline int64_t times(int64_t a, int64_t b) {
  int64_t out;
  if (__builtin_mul_overflow(a, b, &out) || out > (int64_t{1} << 48)) refuse("a size beyond every machine");
  return out;
}

struct Axis {
  int64_t extent, left, right;
};

// Entries of two operands in row-major order of some axes, in runs of at most kRun that share one table of offsets: an address is a sum of two
// numbers then, and not a division for every axis. Neighbouring axes that lie as one are one, so most runs are long.
class Runs {
 public:
  struct Run {
    int64_t first, left, right, count;
  };

  Runs() = default;  // of nothing
  explicit Runs(const std::vector<Axis>& axes) {
    std::vector<Axis> merged;
    for (const Axis& a : axes) {
      if (a.extent == 1) continue;
      if (!merged.empty() && merged.back().left == a.extent * a.left && merged.back().right == a.extent * a.right)
        merged.back() = {merged.back().extent * a.extent, a.left, a.right};
      else
        merged.push_back(a);
    }
    for (const Axis& a : merged) count_ = times(count_, a.extent);
    if (!merged.empty() && merged.back().extent > kRun) {  // a long last axis is cut
      Axis last = merged.back();
      const int64_t pieces = (last.extent + kRun - 1) / kRun;
      tail_ = last.extent - (pieces - 1) * kRun;
      merged.back() = {pieces, last.left * kRun, last.right * kRun};
      merged.push_back({kRun, last.left, last.right});
      cut_ = pieces;
    }
    size_t split = merged.size();
    while (split > 0 && merged[split - 1].extent * length_ <= kRun && !(cut_ && split < merged.size())) length_ *= merged[--split].extent;
    outer_.assign(merged.begin(), merged.begin() + static_cast<int64_t>(split));
    left_.assign(static_cast<size_t>(length_), 0);
    right_.assign(static_cast<size_t>(length_), 0);
    int64_t filled = 1;
    for (size_t i = merged.size(); i-- > split; filled *= merged[i].extent)
      for (int64_t j = filled; j < filled * merged[i].extent; ++j) {
        left_[static_cast<size_t>(j)] = left_[static_cast<size_t>(j % filled)] + j / filled * merged[i].left;
        right_[static_cast<size_t>(j)] = right_[static_cast<size_t>(j % filled)] + j / filled * merged[i].right;
      }
    for (const Axis& a : outer_) runs_ *= a.extent;
  }

  int64_t count() const { return count_; }   // of all entries
  int64_t runs() const { return runs_; }
  int64_t length() const { return length_; }  // of a run, but for a last one
  const std::vector<int64_t>& left() const { return left_; }
  const std::vector<int64_t>& right() const { return right_; }

  Run run(int64_t i) const {
    Run r{0, 0, 0, length_};
    int64_t rest = i, rows = i;
    if (cut_) {
      rows = i / cut_;
      const bool is_last = i % cut_ == cut_ - 1;
      r.first = rows * ((cut_ - 1) * kRun + tail_) + i % cut_ * kRun;
      if (is_last) r.count = tail_;
    } else {
      r.first = i * length_;
    }
    for (size_t a = outer_.size(); a-- > 0; rest /= outer_[a].extent) {
      const int64_t at = rest % outer_[a].extent;
      r.left += at * outer_[a].left;
      r.right += at * outer_[a].right;
    }
    return r;
  }

 private:
  std::vector<Axis> outer_;
  std::vector<int64_t> left_, right_;
  int64_t count_ = 1, runs_ = 1, length_ = 1, cut_ = 0, tail_ = 0;
};

struct Step {
  int64_t left = -1, right = -1;  // numbers of the operands
  std::vector<int64_t> labels;    // of the result
  std::vector<int64_t> contracted;
  std::vector<Axis> cells, candidates;
  int64_t count = 1, choices = 1;  // cells; candidates of a cell
};

struct Plan {
  std::vector<int64_t> sizes, output, contracted, active;
  std::vector<int64_t> lanes;               // the first labels of the output, along which all is done at once: see network.h
  std::vector<std::vector<int64_t>> terms;  // of the operands, then of the results of the steps
  std::vector<int64_t> counts;              // their entries
  std::vector<Step> steps;
  int64_t tables = 0, cells = 1;  // operands; entries of the value

  int64_t stride(int64_t term, int64_t label) const {
    int64_t step = 1, found = 0;
    const auto& labels = terms[static_cast<size_t>(term)];
    for (size_t i = labels.size(); i-- > 0; step *= size(labels[i]))
      if (labels[i] == label) found += step;  // a diagonal
    return found;
  }
  int64_t size(int64_t label) const { return sizes[static_cast<size_t>(label)]; }
};

inline bool has(const std::vector<int64_t>& labels, int64_t label) { return std::find(labels.begin(), labels.end(), label) != labels.end(); }

class Reader {
 public:
  Reader(const int64_t* at, int64_t length) : at_(at), end_(at + length) {}
  int64_t number(int64_t least, int64_t most) {
    if (at_ == end_) refuse("a plan that ends early");
    if (*at_ < least || *at_ > most) refuse("a plan with a number out of range");
    return *at_++;
  }
  std::vector<int64_t> numbers(int64_t count, int64_t least, int64_t most) {
    std::vector<int64_t> found;
    for (int64_t i = 0; i < count; ++i) found.push_back(number(least, most));
    return found;
  }
  void finish() const {
    if (at_ != end_) refuse("a plan with numbers left over");
  }

 private:
  const int64_t *at_, *end_;
};

inline int64_t entries(const Plan& plan, const std::vector<int64_t>& labels) {
  int64_t count = 1;
  for (int64_t label : labels) count = times(count, plan.size(label));
  return count;
}

// Whether a label is taken for that of a batch: most results have it, and what is done for one element is little.
inline bool is_lane(const Plan& plan, int64_t label) {
  constexpr int64_t most_work = 1 << 12;
  const auto term = [&](int64_t value) -> const std::vector<int64_t>& {
    return value < plan.tables ? plan.terms[static_cast<size_t>(value)] : plan.steps[static_cast<size_t>(value - plan.tables)].labels;
  };
  int64_t have = 0;
  for (const Step& step : plan.steps) {
    have += has(step.labels, label);
    std::vector<int64_t> seen{label};
    int64_t work = 1;
    for (int64_t operand : {step.left, step.right})
      if (operand >= 0)
        for (int64_t x : term(operand))
          if (!has(seen, x)) {
            seen.push_back(x);
            work = times(work, plan.size(x));
          }
    if (work > most_work) return false;
  }
  return 2 * have > static_cast<int64_t>(plan.steps.size());
}

inline Plan read(const Ask& ask) {
  constexpr int64_t most = int64_t{1} << 24;
  Reader in(ask.plan, ask.length);
  Plan plan;
  const auto head = in.numbers(6, 0, most);
  const int64_t lanes = in.number(-1, head[5]);
  const int64_t labels = head[0], steps = head[2];
  plan.tables = head[1];
  plan.sizes = in.numbers(labels, 1, int64_t{1} << 48);
  plan.output = in.numbers(head[5], 0, labels - 1);
  plan.contracted = in.numbers(head[3], 0, labels - 1);
  plan.active = in.numbers(head[4], 0, plan.tables - 1);
  for (int64_t i = 0; i < plan.tables; ++i) {
    plan.terms.push_back(in.numbers(in.number(0, most), 0, labels - 1));
    plan.counts.push_back(entries(plan, plan.terms.back()));
  }
  plan.steps.resize(static_cast<size_t>(steps));
  for (int64_t s = 0; s < steps; ++s) {
    Step& step = plan.steps[static_cast<size_t>(s)];
    step.left = in.number(0, plan.tables + s - 1);
    step.right = in.number(-1, plan.tables + s - 1);
    step.labels = in.numbers(in.number(0, most), 0, labels - 1);
  }
  if (lanes < 0 && !plan.output.empty() && is_lane(plan, plan.output[0])) plan.lanes = {plan.output[0]};
  if (lanes > 0) plan.lanes.assign(plan.output.begin(), plan.output.begin() + lanes);
  std::vector<bool> is_read(static_cast<size_t>(plan.tables + steps));
  std::vector<bool> is_gone(static_cast<size_t>(labels));
  for (int64_t s = 0; s < steps; ++s) {
    Step& step = plan.steps[static_cast<size_t>(s)];
    // Lanes lie innermost: then cells side by side have the same other labels.
    std::stable_partition(step.labels.begin(), step.labels.end(), [&](int64_t label) { return !has(plan.lanes, label); });
    for (int64_t operand : {step.left, step.right}) {
      if (operand < 0) continue;
      if (is_read[static_cast<size_t>(operand)]) refuse("a plan that reads a value twice");
      is_read[static_cast<size_t>(operand)] = true;
    }
    std::vector<int64_t> seen;
    for (int64_t operand : {step.left, step.right})
      if (operand >= 0)
        for (int64_t label : plan.terms[static_cast<size_t>(operand)])
          if (!has(seen, label)) seen.push_back(label);
    const auto axis = [&](int64_t label) {
      return Axis{plan.size(label), plan.stride(step.left, label), step.right < 0 ? 0 : plan.stride(step.right, label)};
    };
    for (size_t i = 0; i < step.labels.size(); ++i) {
      if (!has(seen, step.labels[i]) || has({step.labels.begin(), step.labels.begin() + static_cast<int64_t>(i)}, step.labels[i]))
        refuse("a plan whose step makes up a label");
      step.cells.push_back(axis(step.labels[i]));
    }
    for (int64_t label : seen)
      if (!has(step.labels, label)) {
        if (is_gone[static_cast<size_t>(label)] || has(plan.output, label)) refuse("a plan that contracts a label too early");
        is_gone[static_cast<size_t>(label)] = true;
        step.contracted.push_back(label);
        step.candidates.push_back(axis(label));
        step.choices = times(step.choices, plan.size(label));
      }
    step.count = entries(plan, step.labels);
    if (step.choices > std::numeric_limits<int32_t>::max()) refuse("more candidates than int32 counts");
    plan.terms.push_back(step.labels);
    plan.counts.push_back(step.count);
  }
  in.finish();
  plan.cells = entries(plan, plan.output);
  if (ask.question == Question::kSamples || ask.question == Question::kBest) {  // cells are samples, or ways
    if (!plan.output.empty() || ask.results.empty() || plan.contracted.empty()) refuse("many assignments of a value with labels, or of no label");
    plan.cells = ask.results.back().count / static_cast<int64_t>(plan.contracted.size());
  }
  for (size_t i = 0; i < plan.contracted.size(); ++i)
    if (has(plan.output, plan.contracted[i]) || std::count(plan.contracted.begin(), plan.contracted.end(), plan.contracted[i]) > 1)
      refuse("a plan with other contracted labels");
  if (ask.question >= Question::kTotal && ask.question <= Question::kAddEntries) {  // these read no step
    for (const auto& term : plan.terms)
      for (int64_t label : term)
        if (!has(plan.contracted, label) && !has(plan.output, label)) refuse("a plan with other contracted labels");
    return plan;
  }
  if (steps < 1) refuse("a plan without steps");
  for (int64_t i = 0; i + 1 < plan.tables + steps; ++i)
    if (!is_read[static_cast<size_t>(i)]) refuse("a plan that leaves a value unread");
  for (size_t i = 0; i < plan.output.size(); ++i)
    if (!has(plan.terms.back(), plan.output[i]) || has({plan.output.begin(), plan.output.begin() + static_cast<int64_t>(i)}, plan.output[i]))
      refuse("a plan whose last result is not the output");
  if (plan.output.size() != plan.terms.back().size()) refuse("a plan whose last result is not the output");
  for (size_t i = 0; i < plan.contracted.size(); ++i)
    if (!is_gone[static_cast<size_t>(plan.contracted[i])]) refuse("a plan with other contracted labels");
  if (std::count(is_gone.begin(), is_gone.end(), true) != static_cast<int64_t>(plan.contracted.size())) refuse("a plan with other contracted labels");
  return plan;
}

using Bytes = std::unique_ptr<char[]>;

inline Bytes room(int64_t count, int64_t item) { return Bytes(new char[static_cast<size_t>(std::max<int64_t>(times(count, item), 1))]); }

}  // namespace tropical::plans
