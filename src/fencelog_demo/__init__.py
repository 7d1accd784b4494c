"""The main job: real flights through an exactly-once Spark pipeline that is killed on the way.

``python -m fencelog_demo`` runs it. Each role is a process of its own: broker, producer, driver,
killer and audit; they know each other by one event log per stage, as lines of JSON.
"""
