"""Notes each record that somebody writes who does not hold its task: the check that fences are there for.

The database does it itself, in a trigger: a record of a unit needs a lease of its task at that moment, and an attempt
under this lease that has the unit.
"""

from tilewright.db.store import RecordStore

TRIGGER = """
CREATE TABLE late_records (record BIGINT, job BIGINT, task INTEGER, sequence INTEGER, unit TEXT);
CREATE FUNCTION note_late_record() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.adopted_from IS NULL AND NEW.unit IS NOT NULL AND NOT EXISTS (
    SELECT FROM jobs
    JOIN leases ON leases.kind = 'task' AND leases.subject = jobs.id || '/' || NEW.task
    JOIN attempts ON attempts.job = jobs.number AND attempts.task = NEW.task AND attempts.fence = leases.fence
    WHERE jobs.number = NEW.job AND jsonb_exists(attempts.units::jsonb, NEW.unit)
  ) THEN
    INSERT INTO late_records VALUES (NEW.id, NEW.job, NEW.task, NEW.sequence, NEW.unit);
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER note_late_record AFTER INSERT ON trials FOR EACH ROW EXECUTE FUNCTION note_late_record();
"""


def watch_for_late_records(store: RecordStore) -> None:
    """Note late records from now on, in a database of PostgreSQL."""
    with store.database.writing() as connection:
        connection.exec_driver_sql(TRIGGER)


def late_records(store: RecordStore) -> list[str]:
    """Return those that were noted, for people."""
    with store.database.reading() as connection:
        rows = connection.exec_driver_sql("SELECT * FROM late_records ORDER BY record").mappings().all()
    return [f"a late record: {dict(row)}" for row in rows]
