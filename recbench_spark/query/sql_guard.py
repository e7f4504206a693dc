"""Guard of SQL: queries over the product's tables alone.

Views count as tables; Spark's own parser reads the query. A plan may hold only nodes of queries (no
command, no change of a table, no script). Its relations must be tables or views of this warehouse, or names
defined in the query. Its functions must be Spark's, and compute from their arguments alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from pyspark.errors import ParseException
from pyspark.sql import SparkSession

from recbench_spark.engine import sessions
from recbench_spark.errors import ConfigError, nearest

CATALYST = "org.apache.spark.sql.catalyst."

QUERY_NODES = frozenset(
    (
        *("Project", "Filter", "Sort", "GlobalLimit", "LocalLimit", "Offset", "Aggregate", "Distinct"),
        *("Join", "LateralJoin", "Union", "Except", "Intersect", "Sample", "Generate", "Pivot", "Unpivot"),
        *("SubqueryAlias", "UnresolvedSubqueryColumnAliases", "UnresolvedTVFAliases", "UnresolvedHaving"),
        *("UnresolvedWith", "WithWindowDefinition", "UnresolvedHint", "PipeOperator", "OneRowRelation"),
        *("LocalRelation", "UnresolvedInlineTable", "RepartitionByExpression"),
        *("UnresolvedRelation", "UnresolvedTableValuedFunction"),
    )
)
"""Plan nodes in a query."""

REFUSED_FUNCTIONS = frozenset(
    (
        *("java_method", "reflect", "try_reflect"),  # any method of Java
        # These read descriptor files.
        *("from_avro", "to_avro", "schema_of_avro", "from_protobuf", "to_protobuf"),
        *("from_xml", "schema_of_xml"),  # read schema files
        *("xpath", "xpath_boolean", "xpath_double", "xpath_float", "xpath_int", "xpath_long"),
        *("xpath_number", "xpath_short", "xpath_string"),  # XML may name files
        "python_worker_logs",
    )
)
"""Functions of Spark that run code, or read more than their arguments."""

TABLE_FUNCTIONS = frozenset(
    (
        *("explode", "explode_outer", "posexplode", "posexplode_outer", "inline", "inline_outer"),
        *("stack", "json_tuple", "variant_explode", "variant_explode_outer", "range", "sql_keywords"),
        "collations",
    )
)
"""Functions that make a table and read none; Delta adds some which read any table by its path."""

UNRESOLVED = ("ExpressionWithUnresolvedIdentifier", "NamedParameter", "PosParameter")
"""Expressions whose meaning is not in the text."""

LEAVES = ("UnresolvedAttribute", "UnresolvedStar", "Literal")
"""Expressions with names and values alone; most expressions are of this kind."""

VALUE_KINDS = {
    "plan": f"{CATALYST}plans.logical.LogicalPlan",
    "expression": f"{CATALYST}expressions.Expression",
    "": "org.apache.spark.sql.types.DataType",
    "many": "scala.collection.Iterable",
    "one": "scala.Product",
}
"""Kinds of a plan's parts and their Java classes; the first fitting class counts."""

HINT = "write one SELECT over the tables and views that --list names"


def check_query(spark: SparkSession, sql: str, names: Iterable[str]) -> None:
    """Refuse SQL other than a query over known tables.

    Args:
        spark: the session for the query.
        sql: one statement.
        names: names of tables and views, which are temporary views of the session.

    Raises:
        ConfigError: no SQL, no query, or one that reads or runs something else.
    """
    hint = "recbench query --engine local reads the same tables"
    sessions.require_classic(spark, "a query of your own by Spark", hint)
    if "${" in sql:  # Spark would put settings and environment variables there before parsing
        raise ConfigError("'${' is not allowed in SQL", "write the value itself")
    try:
        plan = sessions.parse_sql(spark, sql)
    except ParseException as error:
        message = str(error).strip().partition("\n")[0]
        raise ConfigError(f"not valid SQL: {message[:300]}", HINT) from None
    except sessions.Py4JError:
        raise ConfigError("Spark cannot parse this SQL: it may be nested too deeply", HINT) from None
    _PlanChecker(spark, names).check_plan(plan, frozenset())


class _PlanChecker:
    """Check of a parsed plan, with all expressions and subqueries."""

    def __init__(self, spark: SparkSession, names: Iterable[str]) -> None:
        self.gateway = sessions.find_gateway()
        self.names = frozenset(name.lower() for name in names)
        registry = sessions.open_java(spark).org.apache.spark.sql.catalyst.analysis.FunctionRegistry
        function_names = str(registry.functionSet().mkString("\n")).lower().replace("`", "").splitlines()
        self.functions = {name.rpartition(".")[2] for name in function_names} - REFUSED_FUNCTIONS
        self.kinds: dict[str, str] = {}

    def check_plan(self, node: Any, query_names: frozenset[str]) -> None:
        """Check a node of a plan.

        `query_names`: names defined by the queries around it (WITH).
        """
        kind = _node_kind(node)
        if kind not in QUERY_NODES:
            name = kind or node.getClass().getName()
            raise ConfigError(f"this is not a query: Spark reads it as {name}", HINT)
        if kind == "UnresolvedRelation":
            parts = list(_iterate(node.multipartIdentifier()))
            if len(parts) != 1 or parts[0].lower() not in self.names | query_names:
                message = f"no table or view '{'.'.join(parts)[:200]}'"
                raise ConfigError(message, nearest(parts[-1], self.names))
        elif kind == "UnresolvedTableValuedFunction":
            self._check_function(list(_iterate(node.name())), TABLE_FUNCTIONS)
        elif kind == "UnresolvedWith":
            self._check_with(node, query_names)
            return
        self._check_children(node, query_names)

    def _check_with(self, node: Any, query_names: frozenset[str]) -> None:
        recursive = bool(node.allowRecursion())
        for relation in _iterate(node.cteRelations()):
            name = str(relation.productElement(0)).lower()
            self.check_plan(relation.productElement(1), query_names | ({name} if recursive else set()))
            query_names |= {name}
        self.check_plan(node.child(), query_names)

    def _check_function(self, parts: list[str], allowed: Iterable[str]) -> None:
        if len(parts) != 1 or parts[0].lower() not in allowed:
            what = f"function {'.'.join(parts)[:200]} is not allowed"
            raise ConfigError(f"{what}: unknown, or it reads or runs more than its arguments", HINT)

    def _check_expression(self, node: Any, query_names: frozenset[str]) -> None:
        kind = _node_kind(node)
        if not kind or kind in UNRESOLVED:
            raise ConfigError(f"'{node.toString()[:200]}' is not allowed in SQL", HINT)
        if kind == "UnresolvedFunction":
            self._check_function(list(_iterate(node.nameParts())), self.functions)
        elif kind == "UnresolvedGenerator":
            self._check_function([node.name().unquotedString()], self.functions)
        if kind not in LEAVES:
            self._check_children(node, query_names)

    def _check_children(self, node: Any, query_names: frozenset[str]) -> None:
        """Check a node's parts, also in lists and maps."""
        values = node.iterator() if self._value_kind(node) == "many" else node.productIterator()
        for value in _exhaust(values):  # an iterator of Scala 2.12 (Spark 3.5) has no iterator() itself
            sort = self._value_kind(value) if sessions.is_java(value) else ""
            if sort == "plan":
                self.check_plan(value, query_names)
            elif sort == "expression":
                self._check_expression(value, query_names)
            elif sort in ("many", "one"):
                self._check_children(value, query_names)

    def _value_kind(self, value: Any) -> str:
        """Return a value's kind; ask Java once for each class."""
        name = str(value.getClass().getName())
        if name not in self.kinds:
            kinds = (
                sort
                for sort, java in VALUE_KINDS.items()
                if sessions.is_java_class(self.gateway, value, java)
            )
            self.kinds[name] = next(kinds, "")
        return self.kinds[name]


def _node_kind(node: Any) -> str:
    """Return the last part of a node's class name.

    The result is empty for a class outside Spark's parser.
    """
    name = str(node.getClass().getName())
    parser = tuple(CATALYST + part for part in ("plans.logical.", "analysis.", "expressions."))
    return name.rpartition(".")[2].rstrip("$") if name.startswith(parser) else ""


def _iterate(values: Any) -> Iterator[Any]:
    yield from _exhaust(values.iterator())


def _exhaust(iterator: Any) -> Iterator[Any]:
    while iterator.hasNext():
        yield iterator.next()
