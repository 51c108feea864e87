"""Ways to spread pooled examples over clients: ``(n,)`` client numbers, one for each example."""

from __future__ import annotations

import heapq

import numpy as np
import numpy.typing as npt

from evenhand.data._validation import NDArray, as_array, client_codes, generator
from evenhand.errors import Argument, EvenhandError, real_number, truth_value, whole_number
from evenhand.text import counted

__all__ = [
    "by_column",
    "consecutive",
    "dirichlet",
    "exponential",
    "iid",
    "linear",
    "matching",
    "proportional",
    "quantity",
    "shards",
]

_WIDEST = 1e6
"""Standard deviation of log sizes; one client has all the rows long before that."""


def iid(rows: int | npt.ArrayLike, clients: int, seed: int = 0) -> NDArray:
    """IID partition: deals out shuffled examples evenly; clients' sizes differ by at most one.

    Args:
      rows: how many examples there are, or any array with one entry per example.
      clients: how many clients.
      seed: of the shuffle.

    Returns:
      ``(n,)`` int64 client numbers.

    Raises:
      EvenhandError: fewer examples than clients.

    Example:
      >>> import numpy as np
      >>> np.bincount(iid(10, clients=4))
      array([3, 3, 2, 2])
    """
    n = _row_count(rows, clients)
    return generator(seed, "partition.iid").permutation(np.arange(n) % clients)


def dirichlet(y: npt.ArrayLike, clients: int, alpha: float, seed: int = 0) -> NDArray:
    r"""Label skew (non-IID): each class is divided among the clients by a separate Dirichlet draw.

    For every class :math:`c`, :math:`p_c\sim\mathrm{Dir}(\alpha\mathbf 1_K)` and client :math:`k` gets a
    share :math:`p_{c,k}` of the shuffled examples of :math:`c`, rounded up or down so that the class is used up.
    Small ``alpha``: few clients per class, and unequal sizes; large ``alpha``: nearly IID.

    Differs from the papers: they draw again until every client has enough examples, which may never end; here a
    client left without examples gets a random one of the client that has most.

    Args:
      y: ``(n,)`` class labels of any dtype.
      clients: how many clients, ``K``.
      alpha: concentration, > 0.
      seed: of the draws.

    Returns:
      ``(n,)`` int64 client numbers; every client has at least one example.

    Raises:
      EvenhandError: fewer examples than clients, or ``alpha`` not positive and finite.

    Source: Yurochkin et al., *Bayesian Nonparametric Federated Learning of Neural Networks*, ICML 2019; Li et
    al., *Federated Learning on Non-IID Data Silos*, ICDE 2022.

    Example:
      >>> import numpy as np
      >>> y = np.arange(1000) % 10
      >>> spread = [len(set(y[dirichlet(y, 5, alpha) == 0])) for alpha in (0.01, 100.0)]
      >>> spread[0] < spread[1]
      True
    """
    codes = _classes(y, clients)
    if not 0 < real_number(alpha) <= 1e9:
        raise EvenhandError(f"alpha must be positive and at most 1e9, not {alpha!r:.40}.")
    random = generator(seed, "partition.dirichlet")
    client = np.empty(len(codes), np.int64)
    owed = np.zeros(clients)
    for members in _rows_of_classes(codes):
        rows = random.permutation(members)
        shares = random.dirichlet(np.full(clients, float(alpha)))
        # Of a class with fewer examples than clients, rounding decides who gets any.
        is_small = len(rows) < clients
        client[rows] = _dealt(len(rows), shares, owed) if is_small else _spread(len(rows), shares)
    return _no_empty_client(client, clients, random)


def shards(y: npt.ArrayLike, clients: int, classes_per_client: int, seed: int = 0) -> NDArray:
    """Label skew: every client holds exactly ``classes_per_client`` classes, in shards of similar size.

    Each class is cut into a number of shards in proportion to its examples, and each client is dealt one shard of
    each of ``classes_per_client`` different classes, in random order.

    Differs from the paper: McMahan et al. cut the label-sorted examples at equal distances, so that a shard can
    hold two classes and a client can get two shards of one class.

    Args:
      y: ``(n,)`` class labels of any dtype.
      clients: how many clients.
      classes_per_client: how many classes each of them has.
      seed: of the draws.

    Returns:
      ``(n,)`` int64 client numbers; every client has at least ``classes_per_client`` examples.

    Raises:
      EvenhandError: more classes per client than classes, fewer shards than classes, or too few examples.

    Source: McMahan et al., *Communication-Efficient Learning of Deep Networks from Decentralized Data*,
    AISTATS 2017, section 3.

    Example:
      >>> import numpy as np
      >>> y = np.arange(1000) % 10
      >>> client = shards(y, clients=20, classes_per_client=2)
      >>> {len(set(y[client == k])) for k in range(20)}
      {2}
    """
    codes = _classes(y, clients)
    counts = np.bincount(codes)
    pieces = _shard_counts(counts, clients, classes_per_client)
    random = generator(seed, "partition.shards")
    holders = _deal(pieces, clients, classes_per_client, random)
    client = np.empty(len(codes), np.int64)
    for members, owners in zip(_rows_of_classes(codes), holders, strict=True):
        rows = random.permutation(members)
        for owner, piece in zip(owners, np.array_split(rows, len(owners)), strict=True):
            client[piece] = owner
    return client


def consecutive(
    y: npt.ArrayLike,
    clients: int,
    classes_per_client: int = 2,
    sigma: float = 2.0,
    least: int = 5,
    seed: int = 0,
    *,
    even: bool = False,
) -> NDArray:
    r"""Label and size skew: clients hold neighbouring classes, in log-normal numbers, as FedProx spreads MNIST.

    Client :math:`k` holds the classes :math:`k, k + 1, \dots` modulo their number :math:`C`: ``least`` examples of each
    of them, and of the others of a class :math:`c` a share in proportion to :math:`e^{\sigma z_{c,k}}`,
    :math:`z_{c,k} \sim N(0, 1)`, rounded up or down so that the class is used up.

    Args:
      y: ``(n,)`` class labels of any dtype, numbered in their order.
      clients: how many clients; with fewer than classes, they must still hold all of them.
      classes_per_client: how many neighbouring classes each of them has.
      sigma: :math:`\sigma`, of the log sizes, >= 0; 0: each class is divided evenly.
      least: the fewest examples that a client has of a class that it holds, >= 1.
      seed: of the draws.
      even: each client draws one number :math:`z_k` for all its classes, of which it so holds similar numbers of
        examples, as FedProx spreads ten letters of EMNIST: 200 clients, ``classes_per_client=5``, ``sigma=1``,
        ``least=2``.

    Returns:
      ``(n,)`` int64 client numbers; every client has at least ``least * classes_per_client`` examples.

    Raises:
      EvenhandError: more classes per client than classes, a class that nobody holds or that has too few examples, or
        ``sigma`` negative or not finite.

    Differs from the paper's code, which leaves some examples out: it rounds down, and gives a client no more of a class
    that has fewer examples left than it is to get.  The code's shares add up to 1 over both classes of the clients with
    the same first class; here, over all holders of a class.  Of letters, the code gives each client a drawn number and
    leaves the other examples out, and several clients get the same ones; here all are dealt, each to one client.

    Source: Li et al., *Federated Optimization in Heterogeneous Networks*, MLSys 2020, appendix C.1; 1,000 clients with
    two digits each, of which the code takes 5 at least and ``sigma`` 2.

    Example:
      >>> import numpy as np
      >>> y = np.arange(1000) % 10
      >>> client = consecutive(y, clients=20)
      >>> [np.unique(y[client == k]).tolist() for k in (0, 1, 9, 10)]
      [[0, 1], [1, 2], [0, 9], [0, 1]]
    """
    codes = _classes(y, clients)
    classes = int(codes.max()) + 1
    if not 1 <= whole_number("classes_per_client", classes_per_client, 1) <= classes:
        raise EvenhandError(
            f"classes_per_client must be between 1 and the {classes} classes, not {classes_per_client}."
        )
    _check_width(sigma)
    least = whole_number("least", least, 1)
    random = generator(seed, "partition.consecutive")
    sizes = sigma * random.standard_normal(clients) if truth_value("even", even) else None
    client, owed = np.empty(len(codes), np.int64), np.zeros(clients)
    for label, members in enumerate(_rows_of_classes(codes)):
        holders = np.flatnonzero((label - np.arange(clients)) % classes < classes_per_client)
        if len(members) < max(least * len(holders), 1) or not len(holders):
            raise EvenhandError(
                f"class {label} of {classes}, in the order of the labels, has {counted(len(members), 'example')} and "
                f"{counted(len(holders), 'client')}, each of which is to have {least}: use other numbers of clients, "
                "classes_per_client or least."
            )
        logs = sigma * random.standard_normal(len(holders)) if sizes is None else sizes[holders]
        shares = np.zeros(clients)
        shares[holders] = np.exp(logs - logs.max())
        further = _dealt(len(members) - least * len(holders), shares, owed)
        client[random.permutation(members)] = np.concatenate([np.repeat(holders, least), further])
    return client


def quantity(rows: int | npt.ArrayLike, clients: int, sigma: float, seed: int = 0) -> NDArray:
    r"""Size skew: client sizes are log-normal; examples are otherwise dealt at random.

    Every client gets one example; the others are dealt in proportion to :math:`e^{\sigma z_k}`, :math:`z_k\sim N(0,1)`.

    Args:
      rows: how many examples there are, or any array with one entry per example.
      clients: how many clients.
      sigma: standard deviation of the log sizes, >= 0; 0: equal sizes; 2: a few clients hold most examples.
      seed: of the draws.

    Returns:
      ``(n,)`` int64 client numbers; every client has at least one example.

    Raises:
      EvenhandError: fewer examples than clients, or ``sigma`` negative or not finite.

    Example:
      >>> import numpy as np
      >>> sizes = np.bincount(quantity(1000, clients=10, sigma=2.0))
      >>> int(sizes.sum()), bool(sizes.max() > 5 * np.median(sizes))
      (1000, True)
    """
    n = _row_count(rows, clients)
    _check_width(sigma)
    random = generator(seed, "partition.quantity")
    logs = sigma * random.standard_normal(clients)
    weights = np.exp(logs - logs.max())
    client = np.concatenate([np.arange(clients), _spread(n - clients, weights / weights.sum())])
    return random.permutation(client)


def proportional(rows: int | npt.ArrayLike, sizes: npt.ArrayLike, seed: int = 0) -> NDArray:
    r"""Size skew: client ``k`` gets a share :math:`s_k / \sum_j s_j` of the examples, dealt at random.

    Every client gets one example; the others are dealt in proportion, rounded so that all are used.

    Args:
      rows: how many examples there are, or any array with one entry per example.
      sizes: :math:`s`, ``(clients,)``, finite, at least 0 and not all 0.
      seed: of the deal.

    Returns:
      ``(n,)`` int64 client numbers; every client has at least one example.

    Raises:
      EvenhandError: fewer examples than clients, or sizes that are no such numbers.

    Example:
      >>> import numpy as np
      >>> np.bincount(proportional(103, [1, 2, 7]))
      array([11, 21, 71])
    """
    try:
        shares = np.asarray(sizes, np.float64)
    except (TypeError, ValueError):
        shares = np.empty(0)
    if shares.ndim != 1 or not np.isfinite(shares).all() or (shares < 0).any() or not shares.any():
        raise EvenhandError(
            "sizes must be a list of finite numbers of at least 0, one for each client, not all 0."
        )
    n = _row_count(rows, len(shares))
    random = generator(seed, "partition.proportional")
    dealt = _spread(n - len(shares), shares / shares.max() / (shares / shares.max()).sum())
    return random.permutation(np.concatenate([np.arange(len(shares)), dealt]))


def linear(rows: int | npt.ArrayLike, clients: int, seed: int = 0) -> NDArray:
    """Size skew: client ``k`` of ``0 .. clients - 1`` gets ``k + 1`` shares of the examples, dealt at random.

    Args:
      rows, seed: as in :func:`proportional`.
      clients: how many clients.

    Returns:
      ``(n,)`` int64 client numbers; every client has at least one example.

    Raises:
      EvenhandError: fewer examples than clients.

    Source: ``LinearPartitioner`` of flwr-datasets, up to rounding.

    Example:
      >>> import numpy as np
      >>> np.bincount(linear(103, clients=3))
      array([18, 34, 51])
    """
    _row_count(rows, clients)
    return proportional(rows, np.arange(1.0, clients + 1.0), seed)


def exponential(rows: int | npt.ArrayLike, clients: int, seed: int = 0) -> NDArray:
    r"""Size skew: client ``k`` of ``0 .. clients - 1`` gets :math:`e^k` shares of the examples, dealt at random.

    Args:
      rows, seed: as in :func:`proportional`.
      clients: how many clients; with more than ten, nearly all of them have one example.

    Returns:
      ``(n,)`` int64 client numbers; every client has at least one example.

    Raises:
      EvenhandError: fewer examples than clients.

    Source: ``ExponentialPartitioner`` of flwr-datasets, up to rounding.

    Example:
      >>> import numpy as np
      >>> np.bincount(exponential(103, clients=3))
      array([10, 25, 68])
    """
    _row_count(rows, clients)
    # Of the largest: e^k itself is too large for a float from 710 clients on.
    return proportional(rows, np.exp(np.arange(clients) - (clients - 1.0)), seed)


def by_column(values: npt.ArrayLike) -> NDArray:
    """One client per distinct value, numbered in the order of the values, numbers sorting as numbers.

    Args:
      values: ``(n,)`` ids of any dtype.

    Returns:
      ``(n,)`` int64 client numbers.

    Raises:
      EvenhandError: a value is missing.

    Example:
      >>> by_column(["rome", "oslo", "rome"])
      array([1, 0, 1])
    """
    return client_codes(values, "by_column", "values")[0]


def matching(y: npt.ArrayLike, client: npt.ArrayLike, new_y: npt.ArrayLike, seed: int = 0) -> NDArray:
    """Divides further examples so that each class has the same shares over clients as before, rounded up or down.

    For a data set that comes with pooled test examples: partition the training examples, then give every client test
    examples like them.

    Args:
      y: ``(n,)`` labels of the examples already spread.
      client: ``(n,)`` their client numbers.
      new_y: ``(m,)`` labels of the further examples; a class not in ``y`` is spread by the clients' sizes.
      seed: of the shuffle.

    Returns:
      ``(m,)`` int64 client numbers; a client may get none.

    Example:
      >>> matching([0, 0, 1, 1], [0, 0, 1, 1], [1, 0, 1])
      array([1, 0, 1])
    """
    labels, owner, fresh = (
        as_array(v, "matching", n) for v, n in ((y, "y"), (client, "client"), (new_y, "new_y"))
    )
    if len(labels) != len(owner) or owner.dtype.kind not in "iu" or not len(owner) or owner.min() < 0:
        raise EvenhandError(
            f"matching: client has {len(owner)} entries of {owner.dtype} for {len(labels)} labels: give each entry "
            "of y the number of its client, from 0."
        )
    clients = int(owner.max()) + 1
    random = generator(seed, "partition.matching")
    result = np.empty(len(fresh), np.int64)
    owed = np.zeros(clients)
    for label in np.unique(fresh):
        owners = owner[labels == label]
        counts = np.bincount(owners if len(owners) else owner, minlength=clients)
        rows = random.permutation(np.flatnonzero(fresh == label))
        result[rows] = _dealt(len(rows), counts, owed)
    return result


# --- the arithmetic -----------------------------------------------------------------------------------------


def _row_count(rows: int | npt.ArrayLike, clients: int) -> int:
    """The length of an array, or the number given in its place, checked to suffice for the clients."""
    try:
        count = len(rows)  # pyright: ignore[reportArgumentType]  (the point is to try)
    except TypeError:
        count = whole_number("rows", rows, 0)
    _check_clients(count, clients)
    return count


def _classes(y: npt.ArrayLike, clients: int) -> NDArray:
    """``(n,)`` labels of any kind as positions among the sorted distinct ones, enough for the clients."""
    labels = as_array(y, "partition", "y")
    if labels.ndim != 1:
        raise EvenhandError(
            f"y has {labels.ndim} axes: give one class label per example to partition by label."
        )
    _check_clients(len(labels), clients)
    return np.unique(labels, return_inverse=True)[1]


def owners(y: NDArray, clients: int, alpha: float, seed: int, source: str) -> NDArray:
    """Clients for examples of a source that have none: Dirichlet by class, evenly for real targets."""
    if clients > len(y):
        fault = f"{source}: {len(y)} examples are too few for {clients} clients"
        raise EvenhandError(f"{fault}: ask for fewer with ", Argument("clients", "N"), ".")
    return dirichlet(y, clients, alpha, seed) if are_classes(y) else iid(y, clients, seed)


def are_classes(y: NDArray) -> bool:
    """Whether these labels of examples are class numbers, one each."""
    return y.dtype.kind == "i" and y.ndim == 1


def _check_width(sigma: float) -> None:
    """Refuses a standard deviation of log sizes that is negative or too large."""
    if not 0 <= real_number(sigma) <= _WIDEST:
        raise EvenhandError(
            f"sigma must be finite and at least 0, and at most {_WIDEST:g}, not {sigma!r:.40}."
        )


def _check_clients(rows: int, clients: int) -> None:
    """Refuses a number of clients that is not a whole number from 1, or is larger than that of the examples."""
    if whole_number("clients", clients, 1) > rows:
        raise EvenhandError(f"{rows} examples are too few for {clients} clients: give each at least one.")


def _rows_of_classes(codes: NDArray) -> list[NDArray]:
    """The rows of each class in ascending order."""
    order = np.argsort(codes, kind="stable")
    return np.split(order, np.cumsum(np.bincount(codes))[:-1])


def _spread(rows: int, shares: NDArray) -> NDArray:
    """``(rows,)`` client numbers in ascending order, client ``k`` about ``shares[k] * rows`` times."""
    ends = np.rint(np.cumsum(shares) * rows).astype(np.int64)
    ends[-1] = rows
    return np.repeat(np.arange(len(shares)), np.diff(ends, prepend=0))


def _dealt(rows: int, shares: NDArray, owed: NDArray) -> NDArray:
    """``(rows,)`` client numbers in ascending order: each client's part of the rows, rounded up or down.

    Rounded up where most is ``owed`` by classes before, which this call changes: else all classes would be rounded up
    at the same clients.
    """
    parts = shares / shares.sum() * rows
    counts = np.floor(np.round(parts, 6)).astype(np.int64)  # a part that is whole stays whole
    owed += parts - counts
    can_grow = np.round(parts, 6) > counts
    order = np.argsort(np.where(can_grow, -owed, np.inf), kind="stable")[: rows - counts.sum()]
    counts[order] += 1
    owed[order] -= 1
    return np.repeat(np.arange(len(shares)), counts)


def _no_empty_client(client: NDArray, clients: int, random: np.random.Generator) -> NDArray:
    """Gives each client without examples a random one of the client that has most, the first of several."""
    members = [rows.tolist() for rows in _rows_of_classes(client)]
    members += [[] for _ in range(clients - len(members))]
    heap = [(-len(rows), k) for k, rows in enumerate(members) if rows]
    heapq.heapify(heap)
    for k in [k for k, rows in enumerate(members) if not rows]:
        donor = heap[0][1]
        client[members[donor].pop(int(random.integers(len(members[donor]))))] = k
        heapq.heapreplace(heap, (-len(members[donor]), donor))
    return client


def _shard_counts(counts: NDArray, clients: int, per_client: int) -> NDArray:
    """Shards per class: about equal ones, at most one per client, ``clients * per_client`` in all."""
    if not 1 <= whole_number("classes_per_client", per_client, 1) <= len(counts):
        raise EvenhandError(
            f"classes_per_client must be between 1 and the {len(counts)} classes, not {per_client}."
        )
    total = clients * per_client
    most = np.minimum(counts, clients)
    if total < len(counts):
        raise EvenhandError(
            f"{clients} clients with {per_client} classes each cannot hold {len(counts)} classes: use more clients "
            "or more classes per client."
        )
    if total > most.sum():
        raise EvenhandError(
            f"there are too few examples to give {clients} clients {per_client} classes each: use fewer clients "
            "or fewer classes per client."
        )
    pieces = np.ones(len(counts), np.int64)
    heap = [(-count / 2, label) for label, count in enumerate(counts.tolist()) if most[label] > 1]
    heapq.heapify(heap)
    for _ in range(total - len(counts)):
        _, label = heapq.heappop(heap)
        pieces[label] += 1
        if pieces[label] < most[label]:
            heapq.heappush(heap, (-counts[label].item() / (pieces[label].item() + 1), label))
    return pieces


def _deal(pieces: NDArray, clients: int, per_client: int, random: np.random.Generator) -> list[list[int]]:
    """For each class, the clients that get a shard; taking the classes with most shards left always succeeds."""
    left = pieces.astype(np.float64)
    holders: list[list[int]] = [[] for _ in pieces]
    for k in random.permutation(clients).tolist():
        chosen = np.argsort(left + random.random(len(left)) / 2)[-per_client:]
        left[chosen] -= 1
        for label in chosen.tolist():
            holders[label].append(k)
    return holders
