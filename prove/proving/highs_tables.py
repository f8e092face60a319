"""Load direction tables by HiGHS: reads problems from a file and prints the least F of each for both norms.

Run by the Python of `.tools/highs` (`tools/install.sh highs`), which has highspy. It solves problem (1) of Hu et al. unchanged: a
share y ≥ 0 for each option, shares of a partition adding up to 1, and one free variable per node for (L_j + Q_j) / s, where the
scale s keeps numbers near 1. ℓ2 is ½ Σ of squares over S_j, a quadratic program; ℓ∞ is a linear one with T above all.
"""

import json
import sys
import time

import highspy
import numpy as np

FEASIBLE = 1e-9
# Maximum number of shares of a quadratic program for HiGHS: 34,000 take five seconds, 58,000 and more (90 nodes × 2,004 partitions,
# all degraded reads) many minutes.
MOST_SHARES = 35_000


def program(instance):
    """Returns the number of shares, the matrix by rows over shares and the nodes' totals, the rows' bounds, and the scale."""
    nodes, partitions = instance["nodes"], instance["partitions"]
    scale = sum(demand for demand, _ in partitions) / len(nodes) + sum(queue for queue, _ in nodes) / len(nodes)
    of_nodes = [{} for _ in nodes]
    rows = []
    column = 0
    for demand, options in partitions:
        rows.append({column + place: 1.0 for place in range(len(options))})
        for option in options:
            for node in option:
                of_nodes[node][column] = demand / scale
            column += 1
    shares = column
    for node, row in enumerate(of_nodes):
        rows.append({**row, shares + node: -1.0})
    bounds = [1.0] * len(partitions) + [-queue / scale for queue, _ in nodes]
    return shares, rows, bounds, scale


def model(columns, costs, lower, rows, row_lower, row_upper):
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = columns, len(rows)
    lp.col_cost_ = np.array(costs)
    lp.col_lower_, lp.col_upper_ = np.array(lower), np.full(columns, highspy.kHighsInf)
    lp.row_lower_, lp.row_upper_ = np.array(row_lower), np.array(row_upper)
    starts = np.cumsum([0] + [len(row) for row in rows])
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = starts
    lp.a_matrix_.index_ = np.array([index for row in rows for index in row])
    lp.a_matrix_.value_ = np.array([value for row in rows for value in row.values()])
    return lp


def solve(lp, hessian=None):
    highs = highspy.Highs()
    highs.setOptionValue("output_flag", False)
    highs.setOptionValue("threads", 1)
    highs.setOptionValue("primal_feasibility_tolerance", FEASIBLE)
    highs.setOptionValue("dual_feasibility_tolerance", FEASIBLE)
    whole = highspy.HighsModel()
    whole.lp_ = lp
    if hessian is not None:
        whole.hessian_ = hessian
    highs.passModel(whole)
    began = time.process_time()
    highs.run()
    took = time.process_time() - began
    is_optimal = highs.getModelStatus() == highspy.HighsModelStatus.kOptimal
    return highs.getInfo().objective_function_value, is_optimal, took


def squares(instance):
    shares, rows, bounds, scale = program(instance)
    if shares > MOST_SHARES:
        return None
    nodes = instance["nodes"]
    columns = shares + len(nodes)
    lower = [0.0] * shares + [-highspy.kHighsInf] * len(nodes)
    lp = model(columns, [0.0] * columns, lower, rows, bounds, bounds)
    hessian = highspy.HighsHessian()
    hessian.dim_ = columns
    hessian.format_ = highspy.HessianFormat.kTriangular
    hessian.start_ = np.concatenate([np.zeros(shares, dtype=int), np.arange(len(nodes) + 1)])
    hessian.index_ = np.arange(shares, columns)
    hessian.value_ = np.array([1.0 / rate for _, rate in nodes])
    value, is_optimal, took = solve(lp, hessian)
    return {"value": value * scale * scale, "is_optimal": is_optimal, "seconds": took}


def maximum(instance):
    shares, rows, bounds, scale = program(instance)
    nodes = instance["nodes"]
    partitions = len(instance["partitions"])
    # S_j T − Σ D y / s ≥ Q_j / s, where T is the last column.
    above = [{index: -value for index, value in row.items() if index < shares} | {shares: rate}
             for row, (_, rate) in zip(rows[partitions:], nodes)]
    lower = [0.0] * (shares + 1)
    costs = [0.0] * shares + [1.0]
    least = bounds[:partitions] + [queue / scale for queue, _ in nodes]
    most = bounds[:partitions] + [highspy.kHighsInf] * len(nodes)
    value, is_optimal, took = solve(model(shares + 1, costs, lower, rows[:partitions] + above, least, most))
    return {"value": value * scale, "is_optimal": is_optimal, "seconds": took}


def main():
    with open(sys.argv[1]) as file:
        for solved in json.load(file):
            instance = solved["instance"]
            print(json.dumps({"squares": squares(instance), "maximum": maximum(instance)}), flush=True)


if __name__ == "__main__":
    main()
