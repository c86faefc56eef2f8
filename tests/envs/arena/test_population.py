from stopwise.data.corpus import Query
from stopwise.data.splits import SPLITS, split_of
from stopwise.envs.arena.population import sample_queries


def test_a_sample_of_queries_has_every_split():
    # splits go by a hash of the id as well: sampling by the same hash once gave a sample of training questions only
    queries = [Query(id=f"q{number}", text="?") for number in range(400)]
    chosen = sample_queries(queries, 100)
    assert {split_of(query.id) for query in chosen} == set(SPLITS)
